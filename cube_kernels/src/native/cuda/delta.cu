// What the backward kernels need of each query besides its vectors, four floats of it:
//
//   logsumexp  in base 2, +inf for a query that sees nothing, whose weights are then zero: for rows that are computed again
//   delta      rowsum(dout * out) - dlse, or 0 for a query that sees nothing, whatever its gradients are
//   logsumexp  the same, but NaN where it is `untrusted` or more: for all others
//   delta      the same: each reader has a pair, and TMA begins its boxes at multiples of 16 bytes
//
// Scores beyond 2^24 may come through one-hot masks, see mask.cuh. A logsumexp of such scores is not handed on: the rows
// that meet it become NaN and are computed again. Where a query's seen scores are below 2^23 and its logsumexp is
// trusted, an unseen one that comes through as 2^24 or more weighs exp2(scale_log2 * 2^23), infinitely much for scales from
// 1.1e-5 on, so that its row is computed again as well.
//
// `[batch, heads, queries, 4]`, the queries in the order of their dilation groups, `pitch` places to a group
// along each axis, so that the queries of a tile are a box of it. Places without a query hold zeros. LANES
// neighboring lanes have ROWS places, all of which they read at once. Compile-time parameters: BF16, DIM_V (0 where the caller has
// multiplied: -dlse is all of delta then, and nothing is read of out and dout), LANES, ROWS, PACKED
// (the sequences of a packed batch, each with parameters of its own in global memory, and CTAs that follow those of the sequence
// before it: a CTA waits for them in turn, before it reads anything of its rows, of which it has several for that reason).
//
// The kernel also sets the counters to zero from which the launches that follow take their tiles.

struct Params {
  float4* statistics;
  const u16 *out, *dout;
  const float *lse, *dlse;              // [batch, queries, heads]
  int* taken;
  i64 out_strides[5], dout_strides[5];  // elements: batch, z, y, x, head
  Divisor heads, extent[3], pitch[3];   // places along each axis, and those of a dilation group
  int queries[3], dilation[3];
  int blocks;                          // CTAs of a sample
  int counters;
  float untrusted;
  int padding;
};

DEVICE void unpack_pair(u32 bits, float (&values)[2]) {
  values[0] = unpack((u16)(bits & 0xFFFF));
  values[1] = unpack((u16)(bits >> 16));
}

DEVICE float dot(const uint4& a, const uint4& b) {
  const u32 words[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float left[2], right[2];
    unpack_pair(words[0][i], left);
    unpack_pair(words[1][i], right);
    sum = fmaf(left[0], right[0], fmaf(left[1], right[1], sum));
  }
  return sum;
}

// A row of LANES threads: a place and what it is computed from.
struct Row {
  bool is_place, exists;         // whether it is one of the statistics, and whether a query is there
  i64 place, row, out, dout;     // where it lies in each, in elements

  // Of a sample's places, heads are the fastest, as in memory.
  DEVICE void find(const Params& params, int batch, int rest) {
    const int head = split(rest, params.heads);
    int at[3], token[3];
    exists = true;
#pragma unroll
    for (int a = 2; a >= 0; a--) {
      at[a] = split(rest, params.extent[a]);
      // Groups of an axis follow each other.
      int group = at[a];
      const int member = split(group, params.pitch[a]);
      token[a] = member * params.dilation[a] + group;
      exists = exists && token[a] < params.queries[a];
    }
    is_place = rest == 0;
    exists = exists && is_place;
    auto of = [&](const i64(&strides)[5]) {
      return batch * strides[0] + token[0] * strides[1] + token[1] * strides[2] + token[2] * strides[3] + head * strides[4];
    };
    const Divisor* const extent = params.extent;
    place = ((((i64)batch * params.heads.value + head) * extent[0].value + at[0]) * extent[1].value + at[1]) * extent[2].value + at[2];
    // The first query is read where there is none, so that no load waits for a branch.
    out = exists ? of(params.out_strides) : 0;
    dout = exists ? of(params.dout_strides) : 0;
    const i64 token_row = ((((i64)batch * params.queries[0] + token[0]) * params.queries[1] + token[1]) * params.queries[2] + token[2]) * params.heads.value + head;
    row = exists ? token_row : 0;
  }
};

#if PACKED
struct __align__(128) Sequence { Params params; };
struct Launch {
  const Sequence* sequences;
  const int* first;              // number of the first CTA of each
  int count, blocks, is_ahead, unused;
};
extern "C" __global__ void __launch_bounds__(256) attention_delta(const __grid_constant__ Launch launch) {
  int number = blockIdx.x;
  const Params& params = launch.sequences[find_sequence(launch.first, launch.count, number)].params;
  const u32 block = number;
#else
extern "C" __global__ void __launch_bounds__(256) attention_delta(const __grid_constant__ Params params) {
  const u32 block = blockIdx.x;
#endif
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < params.counters; i += 256) params.taken[i] = 0;
  const int batch = block / params.blocks;
  const int lane = threadIdx.x % LANES;
  const int first = (block - batch * params.blocks) * (ROWS * 256 / LANES) + threadIdx.x / LANES;
  Row rows[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) rows[i].find(params, batch, first + i * (256 / LANES));
  float lse[ROWS], dlse[ROWS], sum[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    lse[i] = params.lse[rows[i].row];
    dlse[i] = params.dlse[rows[i].row];
    sum[i] = 0.f;
  }
#pragma unroll
  for (int d = 8 * lane; d < DIM_V; d += 8 * LANES) {
    uint4 out[ROWS], dout[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      out[i] = *(const uint4*)(params.out + rows[i].out + d);
      dout[i] = *(const uint4*)(params.dout + rows[i].dout + d);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) sum[i] += dot(out[i], dout[i]);
  }
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int mask = LANES / 2; mask; mask >>= 1) sum[i] += __shfl_xor_sync(~0u, sum[i], mask);
    if (lane != 0 || !rows[i].is_place) continue;
    if (!rows[i].exists) lse[i] = dlse[i] = sum[i] = 0.f;
    const bool is_blind = lse[i] == NEG_INF;
    const float base_2 = is_blind ? -NEG_INF : lse[i] * LOG2_E;
    const bool is_trusted = is_blind || fabsf(base_2) < params.untrusted;
    const float delta = is_blind ? 0.f : sum[i] - dlse[i];
    params.statistics[rows[i].place] = make_float4(base_2, delta, is_trusted ? base_2 : __int_as_float(0x7fc00000), delta);
  }
}
