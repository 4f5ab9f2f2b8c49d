// The kernel that makes the statistics of queries, see query_statistics.cuh, where no kernel of the pass makes them itself. LANES
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
    params.statistics[rows[i].place] = query_statistics(lse[i], dlse[i], sum[i], params.untrusted);
  }
}
