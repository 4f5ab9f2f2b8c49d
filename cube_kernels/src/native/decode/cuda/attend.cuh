// Attention of a pair's rows to some keys: each warp has 16 keys at a time, with their values, and sums of its own; in the end a CTA adds up those
// of its warps.

constexpr int KEY_PITCH = 2 * DIM + 16, VALUE_PITCH = 2 * DIM_V + 16;  // bytes: eight rows lie in different banks
constexpr int K_STEPS = DIM / 16, V_STEPS = DIM_V / 16;
constexpr int ROWS_BYTES = 16 * KEY_PITCH;
constexpr int TOKENS_BYTES = WARPS * 16 * (KEY_PITCH + VALUE_PITCH);

// The pair's queries in shared memory, as rows of zeros behind the last one.
DEVICE void load_rows(const u16* query, i64 head_stride) {
  constexpr int CHUNKS = DIM / 8;
  for (int i = threadIdx.x; i < 16 * CHUNKS; i += THREADS) {
    const int row = i / CHUNKS, chunk = i % CHUNKS;
    uint4 some = make_uint4(0, 0, 0, 0);
    if (row < GROUP) some = *(const uint4*)(query + row * head_stride + chunk * 8);
    *(uint4*)(memory + row * KEY_PITCH + chunk * 16) = some;
  }
}

// Has the vectors of 16 tokens, of which each of the first lanes names one, on their way; zeros where it names none.
template <int LENGTH> DEVICE void bring(u32 to, const u16* from, i64 stride, int token, int lane) {
  constexpr int CHUNKS = LENGTH / 8;
  // Addresses of all at once would be too many registers.
#pragma unroll 4
  for (int i = 0; i < CHUNKS / 2; i++) {
    const int row = (i * 32 + lane) / CHUNKS, chunk = (i * 32 + lane) % CHUNKS;
    const int number = __shfl_sync(~0u, token, row);
    copy_or_zero(to + row * (2 * LENGTH + 16) + chunk * 16, from + (number < 0 ? 0 : number * stride) + chunk * 8, number >= 0);
  }
}

struct Sums {
  float values[2 * V_STEPS][4];
  float most[2], weights[2];   // of rows g and g + 8; the weights are those of the lane's own keys
};
DEVICE void start(Sums& sums) {
#pragma unroll
  for (int j = 0; j < 2 * V_STEPS; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums.values[j][i] = 0.f;
#pragma unroll
  for (int r = 0; r < 2; r++) sums.most[r] = NEG_INF, sums.weights[r] = 0.f;
}

// Scores of the rows with a warp's keys, times `scale`; -inf where no key is.
DEVICE void score(u32 rows, u32 keys, float scale, u32 exists, int lane, float (&scores)[2][4]) {
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) scores[j][i] = 0.f;
  const int matrix = lane / 8, line = lane % 8;
#pragma unroll
  for (int k = 0; k < K_STEPS; k++) {
    u32 a[4], b[4];
    load_matrices(a, rows + (matrix % 2 * 8 + line) * KEY_PITCH + k * 32 + matrix / 2 * 16);
    load_matrices(b, keys + (matrix / 2 * 8 + line) * KEY_PITCH + k * 32 + matrix % 2 * 16);
    mma(scores[0], a, b[0], b[1]);
    mma(scores[1], a, b[2], b[3]);
  }
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int key = 8 * j + lane % 4 * 2 + (i & 1);
      scores[j][i] = exists >> key & 1 ? scores[j][i] * scale : NEG_INF;
    }
}

// Adds up the values of a warp's keys, by the weights of these scores.
DEVICE void add(Sums& sums, u32 values, const float (&scores)[2][4], int lane) {
  float factor[2], base[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float most = fmaxf(fmaxf(scores[0][2 * r], scores[0][2 * r + 1]), fmaxf(scores[1][2 * r], scores[1][2 * r + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    most = fmaxf(most, sums.most[r]);
    factor[r] = weight_of(sums.most[r], most);
    // Differences of infinities are no numbers.
    base[r] = most == NEG_INF ? 0.f : most;
    sums.most[r] = most;
    sums.weights[r] *= factor[r];
  }
#pragma unroll
  for (int j = 0; j < 2 * V_STEPS; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums.values[j][i] *= factor[i / 2];
  u32 weights[4];
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float first = exp2_approx(scores[j][2 * r] - base[r]), second = exp2_approx(scores[j][2 * r + 1] - base[r]);
      sums.weights[r] += first + second;
      weights[2 * j + r] = pack(first, second);
    }
  const int matrix = lane / 8, line = lane % 8;
#pragma unroll
  for (int j = 0; j < V_STEPS; j++) {
    u32 b[4];
    load_transposed(b, values + (matrix % 2 * 8 + line) * VALUE_PITCH + j * 32 + matrix / 2 * 16);
    mma(sums.values[2 * j], weights, b[0], b[1]);
    mma(sums.values[2 * j + 1], weights, b[2], b[3]);
  }
}

// Steps that there are keys for of those that a CTA may have, but one at least.
DEVICE int steps_of(i64 keys, int split, int steps) {
  const i64 left = (keys + KEYS - 1) / KEYS - (i64)split * steps;
  return left < 1 ? 1 : left < steps ? (int)left : steps;
}

// Keys and values of a pair, and strides of their tokens, in elements.
struct Tokens {
  const u16 *key, *value;
  i64 key_stride, value_stride;
};

// The sums of a warp over `steps` times 16 keys, of which the first lanes name one each: `token_of(step)`, none if it is negative. Scores of each
// step, and which keys exist, go to `keep` as well.
template <typename TokenOf, typename Keep>
DEVICE void attend(Sums& sums, const u16* query, i64 head_stride, const Tokens& from, float scale, int steps, TokenOf token_of, Keep keep) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 rows = address_of_shared(memory), keys = rows + ROWS_BYTES + warp * 16 * (KEY_PITCH + VALUE_PITCH), values = keys + 16 * KEY_PITCH;
  int token = token_of(0);
  bring<DIM>(keys, from.key, from.key_stride, token, lane);
  commit_copies();
  bring<DIM_V>(values, from.value, from.value_stride, token, lane);
  commit_copies();
  load_rows(query, head_stride);
  start(sums);
  __syncthreads();
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    const u32 exists = __ballot_sync(~0u, token >= 0);
    const bool is_last_step = step + 1 == steps;
    token = is_last_step ? -1 : token_of(step + 1);
    // Keys are there: values, or else the keys of the next step, are on their way all the time.
    wait_for_groups<1>();
    __syncwarp();
    float scores[2][4];
    score(rows, keys, scale, exists, lane, scores);
    __syncwarp();
    if (!is_last_step) bring<DIM>(keys, from.key, from.key_stride, token, lane);
    commit_copies();
    keep(step, exists, scores);
    wait_for_groups<1>();
    __syncwarp();
    add(sums, values, scores, lane);
    __syncwarp();
    if (!is_last_step) bring<DIM_V>(values, from.value, from.value_stride, token, lane);
    commit_copies();
  }
}

// Adds up the sums of all warps of the CTA, and leaves them in the workspace, with their statistics.
DEVICE void leave(Sums& sums, float* statistics, float* all) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const of_warps = (float*)memory;                        // [WARPS, GROUP, DIM_V]
  float2* const rows = (float2*)(of_warps + WARPS * GROUP * DIM_V);  // [WARPS, GROUP]
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sums.weights[r] += __shfl_xor_sync(~0u, sums.weights[r], 1);
    sums.weights[r] += __shfl_xor_sync(~0u, sums.weights[r], 2);
  }
  // All have read what lay there.
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = lane / 4 + 8 * r;
    if (row >= GROUP) continue;
#pragma unroll
    for (int j = 0; j < 2 * V_STEPS; j++)
      *(float2*)(of_warps + (warp * GROUP + row) * DIM_V + 8 * j + lane % 4 * 2) = make_float2(sums.values[j][2 * r], sums.values[j][2 * r + 1]);
    if (lane % 4 == 0) rows[warp * GROUP + row] = make_float2(sums.most[r], sums.weights[r]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < GROUP * DIM_V / 2; i += THREADS) {
    const int row = i / (DIM_V / 2), column = i % (DIM_V / 2) * 2;
    float most = NEG_INF, weights = 0.f;
    float2 total = make_float2(0.f, 0.f);
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, rows[w * GROUP + row].x);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float2 of_row = rows[w * GROUP + row], of = *(const float2*)(of_warps + (w * GROUP + row) * DIM_V + column);
      const float weight = weight_of(of_row.x, most);
      weights = fmaf(weight, of_row.y, weights);
      total.x = fmaf(weight, of.x, total.x), total.y = fmaf(weight, of.y, total.y);
    }
    *(float2*)(all + row * DIM_V + column) = total;
    if (column == 0) *(float2*)(statistics + 2 * row) = make_float2(most, weights);
  }
}
