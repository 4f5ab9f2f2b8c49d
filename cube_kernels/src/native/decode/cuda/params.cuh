// A token of native sparse attention for each sequence of a batch: what its three launches share. A pair is a sample and a head of keys, whose
// GROUP heads of queries are the rows of a product of 16.
//
//   decode_compressed   the new token behind those that are there; scores, and sums over the values, of some compressed blocks of a pair
//   decode_select       the compressed branch of a pair, and its list
//   decode_tokens       sums over the values of some tokens of a pair, of its list or of its window; both branches, and the sum of all three
//
// Sums over many keys are split over CTAs, each of which leaves its own in the workspace; the next launch, or whichever CTA of a pair is the last to
// come to its counter, adds them up in an order that does not change.
//
// Compile-time parameters: BF16, DIM, DIM_V (multiples of 16), GROUP (up to 16), KEYS (of a CTA at a time, 16 of each warp), SELECT_THREADS and
// SELECT_CTAS (of a CTA that selects, and of those that share a multiprocessor).

constexpr int WARPS = KEYS / 16, THREADS = 32 * WARPS;

extern __shared__ __align__(128) u8 memory[];

// Where each part of the workspace begins, in words; `[pairs, ..]` all of them.
struct Workspace {
  i64 counters;          // [2]: of decode_select, of decode_tokens
  i64 scores;            // [compressed blocks, GROUP], with the scale of a power of two
  i64 statistics[2];     // [splits, GROUP, 2]: of compressed blocks and of tokens; the greatest score, and the sum of weights
  i64 sums[2];           // [splits, GROUP, DIM_V]
  i64 best;              // [parts, free, 2]: scores and numbers of the best blocks of a part
};

// Keys or values of a pair: strides of samples, tokens and heads, in elements.
struct View { i64 batch, token, head; };
template <typename T> DEVICE T* of_pair(T* tensor, const View& view, int batch, int head) {
  return tensor + batch * view.batch + head * view.head;
}

// The greatest score of a row and its sum of weights, of some keys. Those of no key are -inf and zero; what is no number stays that.
struct Row { float most, sum; };
DEVICE float weight_of(float most, float of_all) { return most == NEG_INF ? 0.f : exp2_approx(most - of_all); }
// Its logsumexp, -inf where nothing is seen.
DEVICE float logsumexp(const Row& row) { return row.sum == 0.f ? NEG_INF : row.most + log2_approx(row.sum); }

// The statistics over all splits, by LANES neighboring lanes; all of a warp come along.
template <int LANES> DEVICE Row over_splits(const float* statistics, int splits, int row) {
  Row all = {NEG_INF, 0.f};
  for (int split = threadIdx.x % LANES; split < splits; split += LANES) {
    const float2 of = __ldcg((const float2*)statistics + split * GROUP + row);
    const float most = fmaxf(all.most, of.x);
    all.sum = all.sum * weight_of(all.most, most) + of.y * weight_of(of.x, most);
    all.most = most;
  }
  float most = all.most;
#pragma unroll
  for (int other = LANES / 2; other > 0; other /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
  all.sum *= weight_of(all.most, most);
#pragma unroll
  for (int other = LANES / 2; other > 0; other /= 2) all.sum += __shfl_xor_sync(~0u, all.sum, other);
  return {most, all.sum};
}

// Four neighbors of a row of a branch, added up over some splits.
struct Total {
  Row of;
  float4 values;
};
DEVICE Total nothing() { return {{NEG_INF, 0.f}, make_float4(0.f, 0.f, 0.f, 0.f)}; }
DEVICE void scale(Total& total, float most) {
  const float weight = weight_of(total.of.most, most);
  total.of.most = most, total.of.sum *= weight;
  total.values.x *= weight, total.values.y *= weight, total.values.z *= weight, total.values.w *= weight;
}

// Every LANES-th of the splits of a row from one of them on, BATCH of them: on their way from the workspace until they are added. `statistics` and
// `sums` are those of the pair.
template <int LANES, int BATCH> struct Some {
  float2 rows[BATCH];
  float4 values[BATCH];
  DEVICE void load(const float* statistics, const float* sums, int first, int splits, int row, int column) {
    if (splits == 0) return;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const int at = (first + LANES * i < splits ? first + LANES * i : splits - 1) * GROUP + row;
      rows[i] = __ldcg((const float2*)statistics + at), values[i] = __ldcg((const float4*)(sums + (i64)at * DIM_V + column));
    }
  }
  DEVICE void add_to(Total& total, int first, int splits) const {
    float most = total.of.most;
#pragma unroll
    for (int i = 0; i < BATCH; i++)
      if (first + LANES * i < splits) most = fmaxf(most, rows[i].x);
    scale(total, most);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      if (first + LANES * i >= splits) continue;
      const float weight = weight_of(rows[i].x, most);
      total.of.sum = fmaf(weight, rows[i].y, total.of.sum);
      total.values.x = fmaf(weight, values[i].x, total.values.x), total.values.y = fmaf(weight, values[i].y, total.values.y);
      total.values.z = fmaf(weight, values[i].z, total.values.z), total.values.w = fmaf(weight, values[i].w, total.values.w);
    }
  }
};

// What is left of the splits behind those that a first batch has.
template <int LANES, int BATCH>
DEVICE void add_others(Total& total, const float* statistics, const float* sums, int splits, int row, int column) {
#pragma unroll 1
  for (int first = threadIdx.x % LANES + LANES * BATCH; first < splits; first += LANES * BATCH) {
    Some<LANES, BATCH> some;
    some.load(statistics, sums, first, splits, row, column);
    some.add_to(total, first, splits);
  }
}

// Those of LANES neighboring lanes.
template <int LANES> DEVICE void add_lanes(Total& total) {
  float most = total.of.most;
#pragma unroll
  for (int other = LANES / 2; other > 0; other /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
  scale(total, most);
#pragma unroll
  for (int other = LANES / 2; other > 0; other /= 2) {
    total.of.sum += __shfl_xor_sync(~0u, total.of.sum, other);
    total.values.x += __shfl_xor_sync(~0u, total.values.x, other), total.values.y += __shfl_xor_sync(~0u, total.values.y, other);
    total.values.z += __shfl_xor_sync(~0u, total.values.z, other), total.values.w += __shfl_xor_sync(~0u, total.values.w, other);
  }
}

// The vector of the row as two words.
DEVICE uint2 normalized(const Total& total) {
  const float factor = total.of.sum == 0.f ? 0.f : 1.f / total.of.sum;
  return make_uint2(pack(total.values.x * factor, total.values.y * factor), pack(total.values.z * factor, total.values.w * factor));
}

// Whether this CTA is the last of so many that come to a counter: then it sees what all of them have written. `before` is in shared memory.
DEVICE bool is_last(int* counter, int ctas, int& before) {
  __syncthreads();
  if (threadIdx.x == 0) {
    // One thread's fences order what the barriers do for all others.
    __threadfence();
    before = atomicAdd(counter, 1);
    __threadfence();
  }
  __syncthreads();
  return before == ctas - 1;
}
