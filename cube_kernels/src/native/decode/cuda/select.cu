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

// Whether a block goes before another one: among equals that of the lower number.
DEVICE bool is_better(float2 a, float2 b) {
  return a.x > b.x || (a.x == b.x && __float_as_int(a.y) < __float_as_int(b.y));
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
    const float* const sums = params.workspace + places.sums[0] + (i64)pair * params.splits * GROUP * DIM_V;
    for (int i = part * SELECT_THREADS + threadIdx.x; i < GROUP * DIM_V / 4; i += params.parts * SELECT_THREADS) {
      const int row = i / (DIM_V / 4), column = i % (DIM_V / 4) * 4;
      *(uint2*)(params.out + ((i64)pair * GROUP + row) * DIM_V + column) = over_splits<16>(statistics, sums, params.splits, row, column, rows[row]);
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
  float2* const all = (float2*)(masses + (params.size * params.ratio + params.reach) / 2 * 2);
  __syncthreads();
  const int taps = params.ratio + params.reach - 1;
  for (int i = threadIdx.x; i < params.size; i += SELECT_THREADS) {
    float score = 0.f;
    for (int tap = 0; tap < taps; tap++) {
      const int most = tap + 1 < params.ratio ? tap + 1 : params.ratio, before = tap + 1 > params.reach ? tap + 1 - params.reach : 0;
      score += (float)(most - before) * masses[i * params.ratio + tap];
    }
    const int block = first + i;
    // What is no number counts as nothing, so that lists are always whole. What is no candidate is behind all others.
    score = block < params.middle ? (score > 0.f ? score : 0.f) : -1.f;
    all[i] = make_float2(score, __int_as_float(block));
  }
  __syncthreads();
  float2* const best = (float2*)(params.workspace + places.best) + (i64)pair * params.parts * params.free;
  for (int i = threadIdx.x; i < params.size; i += SELECT_THREADS) {
    const float2 mine = all[i];
    int rank = 0;
#pragma unroll 8
    for (int other = 0; other < params.size; other++) rank += is_better(all[other], mine);
    if (rank < params.free) best[part * params.free + rank] = mine;
  }
  const bool is_last_part = is_last((int*)(params.workspace + places.counters) + 2 * pair, params.parts, before);
  add_up();
  if (!is_last_part) return;

  const int count = params.parts * params.free;
  float2* const of_parts = (float2*)memory;
  for (int i = threadIdx.x; i < count; i += SELECT_THREADS) of_parts[i] = __ldcg(best + i);
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += SELECT_THREADS) {
    const float2 mine = of_parts[i];
    int rank = 0;
#pragma unroll 8
    for (int other = 0; other < count; other++) rank += is_better(of_parts[other], mine);
    if (rank < params.free) chosen[rank] = __float_as_int(mine.y);
  }
  __syncthreads();
  if (threadIdx.x < params.free) {
    int rank = params.front;
    for (int other = 0; other < params.free; other++) rank += chosen[other] < chosen[threadIdx.x];
    to[rank] = chosen[threadIdx.x];
  }
}
