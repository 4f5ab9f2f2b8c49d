// How rows become results: from a warpgroup's accumulators to memory, and again where they cannot be trusted.

// Four lanes of a quad hold two adjacent columns each of four groups of eight columns; afterwards each
// holds the eight columns of one group.
DEVICE uint4 gather_quad(u32 a, u32 b, u32 c, u32 d, int lane) {
  const int q = lane & 3;
  u32 mine[4] = {a, b, c, d}, got[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    // Lane q hands group q ^ i to lane q ^ i, whose columns of group q it takes.
    const int group = q ^ i;
    const u32 given = group == 0 ? mine[0] : group == 1 ? mine[1] : group == 2 ? mine[2] : mine[3];
    got[i] = __shfl_xor_sync(~0u, given, i);
  }
  // got[i] are the columns that lane q ^ i held.
  u32 out[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int i = q ^ j;
    out[j] = i == 0 ? got[0] : i == 1 ? got[1] : i == 2 ? got[2] : got[3];
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

// Zero, or NaN where one of the `2 N` columns that a quad has of a row is infinite or NaN.
template <int N> DEVICE float poison_of(const float (&out)[N], int second) {
  float poison = 0.f;
#pragma unroll
  for (int j = 0; j < N / 4; j++) poison = fmaf(out[4 * j + 2 * second], 0.f, fmaf(out[4 * j + 2 * second + 1], 0.f, poison));
  return poison;
}

// Writes `2 N` columns of one row, the lane's second or first one; all lanes of a quad call it with the
// same row. Gives their poison.
template <int N> DEVICE float store_row(u16* row, const float (&out)[N], int second, float factor, bool exists, int lane) {
  const int q = lane & 3;
#define COLUMNS(j) pack(out[4 * (j) + 2 * second] * factor, out[4 * (j) + 2 * second + 1] * factor)
#pragma unroll
  for (int j = 0; j + 3 < N / 4; j += 4) {
    const uint4 columns = gather_quad(COLUMNS(j), COLUMNS(j + 1), COLUMNS(j + 2), COLUMNS(j + 3), lane);
    if (exists) *(uint4*)(row + 8 * (j + q)) = columns;
  }
#pragma unroll
  for (int j = N / 16 * 4; j < N / 4; j++)
    if (exists) *(u32*)(row + 8 * j + 2 * q) = COLUMNS(j);
#undef COLUMNS
  return poison_of(out, second);
}

// The same in single precision.
template <int N> DEVICE float store_row(float* row, const float (&out)[N], int second, float factor, bool exists, int lane) {
#pragma unroll
  for (int j = 0; j < N / 4; j++)
    if (exists) *(float2*)(row + 8 * j + 2 * (lane & 3)) = make_float2(out[4 * j + 2 * second] * factor, out[4 * j + 2 * second + 1] * factor);
  return poison_of(out, second);
}

// Calls `repair` with each of the warp's rows that is broken, with all lanes.
template <typename Repair> DEVICE void for_each_broken(const bool (&broken)[2], const int (&at)[2][PLACE], Repair repair) {
#pragma unroll 1
  for (int r = 0; r < 2; r++) {
    u32 lanes = __ballot_sync(~0u, r ? broken[1] : broken[0]);
    while (lanes) {
      const int quad = (__ffs(lanes) - 1) / 4;
      lanes &= ~(15u << 4 * quad);
      int row[PLACE];
#pragma unroll
      for (int a = 0; a < PLACE; a++) row[a] = __shfl_sync(~0u, r ? at[1][a] : at[0][a], 4 * quad);
      __syncwarp();
      repair(row);
    }
  }
}
