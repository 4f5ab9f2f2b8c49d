// What follows kernels that sum the gradient of a relative position bias. Compile-time parameter: BF16.
//
// Each CTA leaves the sums of its tiles' slopes in a row for each head, and the rows of a head follow each other. They are added up here,
// always in the same order.

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
