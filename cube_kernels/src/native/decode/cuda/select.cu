// The second launch: CTA `pair * parts + part` has a part of the pair's sums of the compressed branch, and `size` of the blocks that its list may
// have. The best of them are left in the workspace, from which the last CTA of a pair makes the list. `sparse/selection.rs` says what it is.

struct SelectParams {
  float* workspace;
  int* lists;            // [batch, heads_kv, entries]
  u16* out;              // [batch, heads, DIM_V]
  float* lse;            // [batch, heads]
  Workspace places;
  int count, splits, parts, size;
  int ratio, reach;      // compressed blocks from one block to the next, and those that overlap a point
  int front, middle, end, free;   // a list: forced blocks, `free` of those before `middle`, forced ones up to `end`
  int blocks, entries;
};

// A block and its score, of which the greater one is chosen: among equals that of the lower number. What is no candidate is behind all others, and
// so is a score that is no number, or none at all, behind other candidates.
DEVICE u64 ranked(float score, int block, bool is_candidate) {
  const u32 of_score = is_candidate ? __float_as_uint(score > 0.f ? score : 0.f) + 1 : 0;
  return (u64)of_score << 32 | (u32)~block;
}
DEVICE int block_of(u64 ranked) { return (int)~(u32)ranked; }

// How many of `count` go before one of them. LANES neighboring lanes share the comparisons.
template <int LANES> DEVICE int rank_of(u64 mine, const u64* all, int count) {
  int rank = 0;
#pragma unroll 8
  for (int other = threadIdx.x % LANES; other < count; other += LANES) rank += all[other] > mine;
#pragma unroll
  for (int other = LANES / 2; other > 0; other /= 2) rank += __shfl_xor_sync(~0u, rank, other);
  return rank;
}

// Calls `chosen` with each of `count` that fewer than `free` go before, and with how many these are.
template <int LANES, typename Chosen> DEVICE void best_of(const u64* all, int count, int free, Chosen chosen) {
  // All lanes of a warp take part in each round.
  for (int first = 0; first < count; first += SELECT_THREADS / LANES) {
    const int own = first + threadIdx.x / LANES;
    const u64 mine = all[own < count ? own : 0];
    const int rank = rank_of<LANES>(mine, all, count);
    if (own < count && rank < free && threadIdx.x % LANES == 0) chosen(rank, mine);
  }
}

// What the weights of a compressed block come to in all rows.
DEVICE float probability(const float* scores, const float* lse) {
  float sum = 0.f;
  if constexpr (GROUP % 4 == 0) {
#pragma unroll
    for (int row = 0; row < GROUP; row += 4) {
      const float4 of = __ldcg((const float4*)(scores + row));
      sum += exp2_approx(of.x - lse[row]) + exp2_approx(of.y - lse[row + 1]) + exp2_approx(of.z - lse[row + 2]) + exp2_approx(of.w - lse[row + 3]);
    }
  } else {
#pragma unroll
    for (int row = 0; row < GROUP; row++) sum += exp2_approx(__ldcg(scores + row) - lse[row]);
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(SELECT_THREADS)
decode_select(const __grid_constant__ SelectParams params) {
  __shared__ Row rows[GROUP];
  __shared__ float lse[GROUP];
  __shared__ int chosen[32], before;
  const int pair = blockIdx.x / params.parts, part = blockIdx.x % params.parts;
  const Workspace& places = params.places;
  const float* const statistics = params.workspace + places.statistics[0] + (i64)pair * params.splits * GROUP * 2;
  // As many lanes to a row as there are for 16 rows.
  constexpr int LANES = SELECT_THREADS / 16;
  const int own = threadIdx.x / LANES;
  const Row mine = over_splits<LANES>(statistics, params.splits, own < GROUP ? own : 0);
  if (own < GROUP && threadIdx.x % LANES == 0) {
    rows[own] = mine;
    lse[own] = logsumexp(mine.most, mine.sum);
    if (part == 0) params.lse[pair * GROUP + own] = lse[own] * LN_2;
  }
  __syncthreads();

  // Nobody waits for the branch, and so it comes last.
  auto add_up = [&]() {
    constexpr int PLACES = GROUP * DIM_V / 4, SHARE = 8, OF_CTA = SELECT_THREADS / SHARE;
    const float* const sums = params.workspace + places.sums[0] + (i64)pair * params.splits * GROUP * DIM_V;
    for (int first = part * OF_CTA; first < PLACES; first += params.parts * OF_CTA) {
      const int own = first + threadIdx.x / SHARE, place = own < PLACES ? own : 0, row = place / (DIM_V / 4), column = place % (DIM_V / 4) * 4;
      const uint2 words = over_splits<SHARE, 4>(statistics, sums, params.splits, row, column, rows[row]);
      if (own < PLACES && threadIdx.x % SHARE == 0) *(uint2*)(params.out + ((i64)pair * GROUP + row) * DIM_V + column) = words;
    }
  };

  int* const to = params.lists + (i64)pair * params.entries;
  const int candidates = params.middle - params.front;
  const bool is_scored = params.free > 0 && candidates > params.free;
  const int taken = candidates < params.free ? candidates : params.free, behind = params.front + taken;
  if (part == 0)
    for (int entry = threadIdx.x; entry < params.entries; entry += SELECT_THREADS) {
      if (entry < params.front || (entry < behind && !is_scored)) to[entry] = entry;
      if (entry >= behind) {
        const int block = params.middle + entry - behind;
        to[entry] = block < params.end && block < params.blocks ? block : -1;
      }
    }
  if (!is_scored) {
    add_up();
    return;
  }

  // Probabilities of the compressed blocks that overlap this part's.
  float* const masses = (float*)memory;
  const float* const scores = params.workspace + places.scores + (i64)pair * params.count * GROUP;
  const int first = params.front + part * params.size, from = first * params.ratio - (params.reach - 1);
  for (int i = threadIdx.x; i < params.size * params.ratio + params.reach - 1; i += SELECT_THREADS) {
    const int x = from + i;
    masses[i] = x >= 0 && x < params.count ? probability(scores + (i64)x * GROUP, lse) : 0.f;
  }
  u64* const all = (u64*)(masses + (params.size * params.ratio + params.reach) / 2 * 2);
  __syncthreads();
  const int taps = params.ratio + params.reach - 1;
  for (int i = threadIdx.x; i < params.size; i += SELECT_THREADS) {
    float score = 0.f;
    for (int tap = 0; tap < taps; tap++) {
      const int most = tap + 1 < params.ratio ? tap + 1 : params.ratio, before = tap + 1 > params.reach ? tap + 1 - params.reach : 0;
      score += (float)(most - before) * masses[i * params.ratio + tap];
    }
    all[i] = ranked(score, first + i, first + i < params.middle);
  }
  __syncthreads();
  u64* const best = (u64*)(params.workspace + places.best) + (i64)pair * params.parts * params.free;
  auto leave_best = [&](int rank, u64 of) { best[part * params.free + rank] = of; };
  if (params.size == SELECT_THREADS / 4) best_of<4>(all, params.size, params.free, leave_best);
  else if (params.size == SELECT_THREADS / 2) best_of<2>(all, params.size, params.free, leave_best);
  else best_of<1>(all, params.size, params.free, leave_best);
  const bool is_last_part = is_last((int*)(params.workspace + places.counters) + 2 * pair, params.parts, before);
  if (!is_last_part) {
    add_up();
    return;
  }

  const int count = params.parts * params.free;
  u64* const of_parts = (u64*)memory;
  for (int i = threadIdx.x; i < count; i += SELECT_THREADS) of_parts[i] = __ldcg(best + i);
  __syncthreads();
  best_of<1>(of_parts, count, params.free, [&](int rank, u64 of) { chosen[rank] = block_of(of); });
  __syncthreads();
  if (threadIdx.x < params.free) {
    int rank = params.front;
    for (int other = 0; other < params.free; other++) rank += chosen[other] < chosen[threadIdx.x];
    to[rank] = chosen[threadIdx.x];
  }
  add_up();
}
