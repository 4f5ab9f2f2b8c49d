// What surrounds kernels that add a relative position bias. Compile-time parameter: BF16.
//
// They read it from a table, one for each head, whose entries hold two neighbors along the fastest axis: columns come in
// pairs. Around what the bias holds there are zeros, which scores of pairs that no window joins read.
//
// A backward kernel leaves the sums of each tile's slopes in a row of their own, and the rows of a head follow each
// other. They are added up here, always in the same order.

struct TableParams {
  u32* table;
  const u16* bias;               // [heads, z, y, x]
  float* sums;                   // of the tiles, to be set to zero; a tile without rows writes none
  i64 sum_count;
  int extents[3], margin[3];     // entries of the bias along an axis, and zeros on either side
  int heads;
  int padding;
};

extern "C" __global__ void __launch_bounds__(256) bias_table(const __grid_constant__ TableParams params) {
  int lengths[3];
#pragma unroll
  for (int a = 0; a < 3; a++) lengths[a] = params.extents[a] + 2 * params.margin[a];
  const int head_entries = lengths[0] * lengths[1] * lengths[2];
  const i64 count = (i64)params.heads * head_entries, stride = (i64)gridDim.x * 256;
  for (i64 i = blockIdx.x * 256 + threadIdx.x; i < params.sum_count; i += stride) params.sums[i] = 0.f;
  for (i64 i = blockIdx.x * 256 + threadIdx.x; i < count; i += stride) {
    const int head = i / head_entries;
    int rest = i - (i64)head * head_entries, at[3];
#pragma unroll
    for (int a = 2; a >= 0; a--) {
      at[a] = rest % lengths[a] - params.margin[a];
      rest /= lengths[a];
    }
    bool exists = true;
#pragma unroll
    for (int a = 0; a < 2; a++) exists = exists && at[a] >= 0 && at[a] < params.extents[a];
    const u16* line = params.bias + (((i64)head * params.extents[0] + at[0]) * params.extents[1] + at[1]) * params.extents[2];
    u32 pair = 0;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int x = at[2] + e;
      if (exists && x >= 0 && x < params.extents[2]) pair |= (u32)line[x] << 16 * e;
    }
    params.table[i] = pair;
  }
}

struct SumParams {
  u16* gradient;                 // [heads, entries]
  const float* sums;             // [heads, rows, entries]
  int rows, entries;
};

// A CTA adds up 32 entries of a head: each of its 32 warps every 32nd row, and then one of them the warps' sums.
extern "C" __global__ void __launch_bounds__(1024) bias_sum(const __grid_constant__ SumParams params) {
  __shared__ float parts[32][33];
  const int blocks = (params.entries + 31) / 32;
  const int head = blockIdx.x / blocks, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int entry = blockIdx.x % blocks * 32 + lane;
  const float* column = params.sums + (i64)head * params.rows * params.entries + entry;
  float sum = 0.f;
  if (entry < params.entries) {
#pragma unroll 8
    for (int row = warp; row < params.rows; row += 32) sum += column[(i64)row * params.entries];
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || entry >= params.entries) return;
  sum = 0.f;
#pragma unroll
  for (int i = 0; i < 32; i++) sum += parts[i][lane];
  params.gradient[(i64)head * params.entries + entry] = (u16)pack(sum, 0.f);
}
