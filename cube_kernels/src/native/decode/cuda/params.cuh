// A token of native sparse attention for each sequence of a batch: what its three launches share. A pair is a sample and a head of keys, whose
// GROUP heads of queries are the rows of a product of 16.
//
//   decode_compressed   scores, and sums over the values, of some compressed blocks of a pair
//   decode_select       the compressed branch of a pair, and its list
//   decode_tokens       sums over the values of some tokens of a pair, of its list or of its window; both branches, and the sum of all three
//
// Sums over many keys are split over CTAs, each of which leaves its own in the workspace; they are added up in the order of the keys by
// whichever CTA of a pair is the last to come to its counter.
//
// Compile-time parameters: BF16, DIM, DIM_V (multiples of 16), GROUP (up to 16), KEYS (of a CTA at a time, 16 of each warp).

constexpr int WARPS = KEYS / 16, THREADS = 32 * WARPS;
constexpr int SELECT_THREADS = 256;

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
DEVICE float weight_of(float most, float of_all) { return most == NEG_INF ? 0.f : exp2_approx(most - of_all); }
// A logsumexp, -inf where nothing is seen.
DEVICE float logsumexp(float most, float sum) { return sum == 0.f ? NEG_INF : most + log2_approx(sum); }

// Statistics of a row over all splits, by LANES neighboring lanes; all of a warp come along.
struct Row { float most, sum; };
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

// Four neighbors of a row of a branch, as two words: the sum over all splits, by LANES neighboring lanes, each of which reads BATCH splits at a
// time. `statistics` and `sums` are those of the pair.
template <int LANES, int BATCH> DEVICE uint2 over_splits(const float* statistics, const float* sums, int splits, int row, int column, Row all) {
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
  for (int first = threadIdx.x % LANES; first < splits; first += LANES * BATCH) {
    float mosts[BATCH];
    float4 of[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const i64 at = (first + LANES * i < splits ? first + LANES * i : splits - 1) * GROUP + row;
      mosts[i] = __ldcg(statistics + 2 * at);
      of[i] = __ldcg((const float4*)(sums + at * DIM_V + column));
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const float weight = first + LANES * i < splits ? weight_of(mosts[i], all.most) : 0.f;
      total.x = fmaf(weight, of[i].x, total.x), total.y = fmaf(weight, of[i].y, total.y);
      total.z = fmaf(weight, of[i].z, total.z), total.w = fmaf(weight, of[i].w, total.w);
    }
  }
#pragma unroll
  for (int other = LANES / 2; other > 0; other /= 2) {
    total.x += __shfl_xor_sync(~0u, total.x, other), total.y += __shfl_xor_sync(~0u, total.y, other);
    total.z += __shfl_xor_sync(~0u, total.z, other), total.w += __shfl_xor_sync(~0u, total.w, other);
  }
  const float factor = all.sum == 0.f ? 0.f : 1.f / all.sum;
  uint2 words;
  words.x = pack(total.x * factor, total.y * factor), words.y = pack(total.z * factor, total.w * factor);
  return words;
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
