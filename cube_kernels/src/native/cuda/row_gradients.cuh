// The gradients of a row by one warp, a column after the other: for rows that the fast path cannot be trusted with.

struct Row {
  float values[(DIM + 31) / 32], values_v[(DIM_V + 31) / 32];  // this lane's elements of two vectors
};

DEVICE void load_row(Row& row, const u16* first, const u16* second, int lane) {
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++) row.values[i] = i * 32 + lane < DIM ? unpack(first[i * 32 + lane]) : 0.f;
#pragma unroll
  for (int i = 0; i < (DIM_V + 31) / 32; i++) row.values_v[i] = i * 32 + lane < DIM_V ? unpack(second[i * 32 + lane]) : 0.f;
}

// The score and dP of a row and a column.
DEVICE void dots(const Row& row, const Row& column, float& score, float& product) {
  score = product = 0.f;
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++) score += row.values[i] * column.values[i];
#pragma unroll
  for (int i = 0; i < (DIM_V + 31) / 32; i++) product += row.values_v[i] * column.values_v[i];
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) {
    score += __shfl_xor_sync(~0u, score, mask);
    product += __shfl_xor_sync(~0u, product, mask);
  }
}

// Adds what a column contributes to the gradients of a row.
DEVICE void see(Row& sum, const Row& row, const u16* first, const u16* second, float lse, float delta, float scale, float bias, int lane) {
  Row column;
  load_row(column, first, second, lane);
  float score, product;
  dots(row, column, score, product);
  if constexpr (BIAS) lse -= bias * LOG2_E;
  const float weight = exp2f(score * scale - lse), slope = weight * (product - delta);
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++) sum.values[i] += slope * column.values[i];
#pragma unroll
  for (int i = 0; i < (DIM_V + 31) / 32; i++) sum.values_v[i] += weight * column.values_v[i];
}
