// Adds up what SPLITS CTAs have summed of the gradient of keys or values, in their order, and rounds it once. Compile-time parameter: BF16.
//
// A thread has four elements of a vector.

struct SplitParams {
  u16* gradient;                 // [rows, dim], of which this writes `width` elements from `start` on
  const float* sums;             // [rows, splits, width]
  i64 rows;
  int splits, width, dim, start;
};

extern "C" __global__ void __launch_bounds__(256) add_splits(const __grid_constant__ SplitParams params) {
  const int fours = params.width / 4;
  const i64 index = (i64)blockIdx.x * 256 + threadIdx.x, row = index / fours;
  const int at = (int)(index % fours) * 4;
  if (row >= params.rows) return;
  const float* from = params.sums + row * params.splits * params.width + at;
  float sum[4] = {};
#pragma unroll 4
  for (int split = 0; split < params.splits; split++, from += params.width) {
    const float4 part = *(const float4*)from;
    sum[0] += part.x;
    sum[1] += part.y;
    sum[2] += part.z;
    sum[3] += part.w;
  }
  const uint2 rounded = {pack(sum[0], sum[1]), pack(sum[2], sum[3])};
  *(uint2*)(params.gradient + row * params.dim + params.start + at) = rounded;
}
