// The second launch. Of a pair's `parts + sums` CTAs, each of the first has `size` of the blocks that its list may have: the best of them are left in
// the workspace, from which the last of these CTAs makes the list. `sparse/selection.rs` says what it is. The others add up the compressed branch; where
// there are none, the first do.

struct SelectParams {
  float* workspace;
  int* lists;            // [batch, heads_kv, entries]
  u16* out;              // [batch, heads, DIM_V]
  float* lse;            // [batch, heads]
  Workspace places;
  int count, splits, parts, size, sums;
  int ratio, reach;      // compressed blocks from one block to the next, and those that overlap a point
  int front, middle, end, free;   // a list: forced blocks, `free` of those before `middle`, forced ones up to `end`
  int blocks, entries, unused;
};

// A block and its score, of which the greater one is chosen: among equals that of the lower number. What is no candidate is behind all others, and
// so is a score that is no number, or none at all, behind other candidates.
DEVICE u64 ranked(float score, int block, bool is_candidate) {
  const u32 of_score = is_candidate ? __float_as_uint(score > 0.f ? score : 0.f) + 1 : 0;
  return (u64)of_score << 32 | (u32)~block;
}
DEVICE int block_of(u64 ranked) { return (int)~(u32)ranked; }

DEVICE int greater_ones(const u64* all, int count, u64 mine) {
  int greater = 0;
#pragma unroll 8
  for (int other = 0; other < count; other++) greater += all[other] > mine;
  return greater;
}

// The best `free` of `count` lists of as many, the greatest first: pairs of lists become one until one is left, each time in the other place.
DEVICE const u64* best_of(u64* lists, u64* others, int count, int free) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  while (count > 1) {
    const int half = (count + 1) / 2;
    for (int list = warp; list < count; list += SELECT_THREADS / 32) {
      const int to = list < half ? list : list - half, with = list < half ? list + half : to;
      if (lane >= free) continue;
      const u64 mine = lists[list * free + lane];
      const int rank = lane + (with < count ? greater_ones(lists + with * free, free, mine) : 0);
      if (rank < free) others[to * free + rank] = mine;
    }
    __syncthreads();
    u64* const best = others;
    others = lists, lists = best;
    count = half;
  }
  return lists;
}

// A compressed block has SHARE neighboring lanes, each of which has the scores of so many rows.
constexpr int SHARE = GROUP % 16 == 0 ? 4 : GROUP % 8 == 0 ? 2 : 1, OF_LANE = GROUP / SHARE;
struct Scores {
  float of[OF_LANE];
  DEVICE void load(const float* from) {
    if constexpr (OF_LANE % 4 == 0) {
#pragma unroll
      for (int row = 0; row < OF_LANE; row += 4) {
        const float4 some = __ldcg((const float4*)(from + row));
        of[row] = some.x, of[row + 1] = some.y, of[row + 2] = some.z, of[row + 3] = some.w;
      }
    } else {
#pragma unroll
      for (int row = 0; row < OF_LANE; row++) of[row] = __ldcg(from + row);
    }
  }
  // What the weights of the block come to in all rows.
  DEVICE float probability(const float* lse) const {
    float sum = 0.f;
#pragma unroll
    for (int row = 0; row < OF_LANE; row++) sum += exp2_approx(of[row] - lse[row]);
#pragma unroll
    for (int other = SHARE / 2; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    return sum;
  }
};

// One of so many shares of a pair's compressed branch, by LANES neighboring lanes for four neighbors of a row.
template <int LANES> DEVICE void add_up(const SelectParams& params, int pair, int share, int shares) {
  constexpr int PLACES = GROUP * DIM_V / 4, OF_CTA = SELECT_THREADS / LANES;
  const float* const statistics = params.workspace + params.places.statistics[0] + (i64)pair * params.splits * GROUP * 2;
  const float* const sums = params.workspace + params.places.sums[0] + (i64)pair * params.splits * GROUP * DIM_V;
  const int lane = threadIdx.x % LANES;
  for (int first = share * OF_CTA; first < PLACES; first += shares * OF_CTA) {
    const int own = first + threadIdx.x / LANES, place = own < PLACES ? own : 0, row = place / (DIM_V / 4), column = place % (DIM_V / 4) * 4;
    Some<LANES, 4> some;
    some.load(statistics, sums, lane, params.splits, row, column);
    Total total = nothing();
    some.add_to(total, lane, params.splits);
    add_others<LANES, 4>(total, statistics, sums, params.splits, row, column);
    add_lanes<LANES>(total);
    if (own >= PLACES || lane > 0) continue;
    *(uint2*)(params.out + ((i64)pair * GROUP + row) * DIM_V + column) = normalized(total);
    if (column == 0) params.lse[pair * GROUP + row] = logsumexp(total.of) * LN_2;
  }
}

// Leaves the best blocks of part `part`, the greatest first.
DEVICE void choose(const SelectParams& params, int pair, int part, float* lse) {
  // Probabilities of the compressed blocks that overlap the part's. The first scores are on their way together with the statistics.
  const Workspace& places = params.places;
  const float* const scores = params.workspace + places.scores + (i64)pair * params.count * GROUP;
  const int first = params.front + part * params.size, from = first * params.ratio - (params.reach - 1);
  const int overlapping = params.size * params.ratio + params.reach - 1;
  constexpr int AHEAD = OF_LANE <= 4 ? 5 : OF_LANE <= 8 ? 2 : 1, AT_A_TIME = SELECT_THREADS / SHARE;
  Scores some[AHEAD];
  auto load = [&](int at) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int own = at + i * AT_A_TIME + threadIdx.x / SHARE, x = from + own;
      if (own < overlapping && x >= 0 && x < params.count) some[i].load(scores + (i64)x * GROUP + threadIdx.x % SHARE * OF_LANE);
    }
  };
  load(0);
  // As many lanes to a row as there are for 16 rows.
  constexpr int LANES = SELECT_THREADS / 16;
  const int row = threadIdx.x / LANES;
  const Row all_of_row = over_splits<LANES>(params.workspace + places.statistics[0] + (i64)pair * params.splits * GROUP * 2, params.splits, row < GROUP ? row : 0);
  if (row < GROUP && threadIdx.x % LANES == 0) lse[row] = logsumexp(all_of_row);
  __syncthreads();
  float* const masses = (float*)memory;
#pragma unroll 1
  for (int at = 0; at < overlapping; at += AHEAD * AT_A_TIME) {
    if (at > 0) load(at);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int own = at + i * AT_A_TIME + threadIdx.x / SHARE, x = from + own;
      const float mass = some[i].probability(lse + threadIdx.x % SHARE * OF_LANE);
      if (own < overlapping && threadIdx.x % SHARE == 0) masses[own] = x >= 0 && x < params.count ? mass : 0.f;
    }
  }
  u64* const all = (u64*)(masses + (overlapping + 1) / 2 * 2);
  u64 *const lists = all + params.size, *const others = lists + params.size / 32 * params.free;
  __syncthreads();
  // A list of the best of each warp's, of which there are 32.
  const int taps = params.ratio + params.reach - 1;
  if (threadIdx.x < params.size) {
    float score = 0.f;
    for (int tap = 0; tap < taps; tap++) {
      const int most = tap + 1 < params.ratio ? tap + 1 : params.ratio, before = tap + 1 > params.reach ? tap + 1 - params.reach : 0;
      score += (float)(most - before) * masses[threadIdx.x * params.ratio + tap];
    }
    const int block = first + threadIdx.x, warp = threadIdx.x / 32;
    const u64 mine = ranked(score, block, block < params.middle);
    all[threadIdx.x] = mine;
    __syncwarp();
    const int rank = greater_ones(all + 32 * warp, 32, mine);
    if (rank < params.free) lists[warp * params.free + rank] = mine;
  }
  __syncthreads();
  const u64* const best = best_of(lists, others, params.size / 32, params.free);
  u64* const to = (u64*)(params.workspace + places.best) + ((i64)pair * params.parts + part) * params.free;
  if (threadIdx.x < params.free) to[threadIdx.x] = best[threadIdx.x];
}

// Puts the best blocks of all parts into the list, in order. `chosen` is in shared memory.
DEVICE void fill_in(const SelectParams& params, int pair, int* list, int* chosen) {
  const int count = params.parts * params.free;
  const u64* const best = (const u64*)(params.workspace + params.places.best) + (i64)pair * count;
  u64* const of_parts = (u64*)memory;
  for (int i = threadIdx.x; i < count; i += SELECT_THREADS) of_parts[i] = __ldcg(best + i);
  __syncthreads();
  const u64* const best_of_all = best_of(of_parts, of_parts + count, params.parts, params.free);
  if (threadIdx.x < params.free) chosen[threadIdx.x] = block_of(best_of_all[threadIdx.x]);
  __syncthreads();
  if (threadIdx.x >= params.free) return;
  int rank = params.front;
  for (int other = 0; other < params.free; other++) rank += chosen[other] < chosen[threadIdx.x];
  list[rank] = chosen[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(SELECT_THREADS, SELECT_CTAS)
decode_select(const __grid_constant__ SelectParams params) {
  __shared__ float lse[GROUP];
  __shared__ int chosen[32], before;
  wait_for_launch_ahead();
  // Not before: the next one reads what the first one has written.
  let_next_launch_begin();
  const int of_pair = params.parts + params.sums, pair = blockIdx.x / of_pair, part = blockIdx.x % of_pair;
  const bool is_part = part < params.parts;
  int* const list = params.lists + (i64)pair * params.entries;
  const int candidates = params.middle - params.front;
  const bool is_scored = params.free > 0 && candidates > params.free;
  if (part == 0) {
    const int taken = candidates < params.free ? candidates : params.free, behind = params.front + taken;
    for (int entry = threadIdx.x; entry < params.entries; entry += SELECT_THREADS) {
      if (entry < params.front || (entry < behind && !is_scored)) list[entry] = entry;
      if (entry >= behind) {
        const int block = params.middle + entry - behind;
        list[entry] = block < params.end && block < params.blocks ? block : -1;
      }
    }
  }
  if (is_part && is_scored) choose(params, pair, part, lse);
  if (!is_part || params.sums == 0) {
    const int share = is_part ? part : part - params.parts, shares = params.sums == 0 ? params.parts : params.sums;
    if (params.splits > 4) add_up<8>(params, pair, share, shares);
    else add_up<1>(params, pair, share, shares);
  }
  if (is_part && is_scored && is_last((int*)(params.workspace + params.places.counters) + 2 * pair, params.parts, before))
    fill_in(params, pair, list, chosen);
}
