// How rows become results: from a warpgroup's accumulators to memory, and again where they cannot be trusted.

// Four lanes of a quad hold two adjacent columns each of four groups of eight columns; afterwards each
// holds the eight columns of one group. In two rounds, each of which takes both of what it selects between:
// the compiler makes branches of the selections otherwise, which a quad's lanes then take one after the other.
DEVICE uint4 gather_quad(u32 a, u32 b, u32 c, u32 d, int lane) {
  const bool odd = lane & 1, high = lane & 2;
  // With the neighbor: of groups a and b, and of c and d, the one of this lane's parity.
  const u32 ab = odd ? b : a, cd = odd ? d : c;
  const u32 ab_near = __shfl_xor_sync(~0u, odd ? a : b, 1), cd_near = __shfl_xor_sync(~0u, odd ? c : d, 1);
  // With the other pair of lanes: of these two the lane's own group.
  const u32 own = high ? cd : ab, near = high ? cd_near : ab_near;
  const u32 far = __shfl_xor_sync(~0u, high ? ab : cd, 2), farthest = __shfl_xor_sync(~0u, high ? ab_near : cd_near, 2);
  // They came from lanes q, q ^ 1, q ^ 2 and q ^ 3.
  const u32 even_here = odd ? near : own, odd_here = odd ? own : near;
  const u32 even_there = odd ? farthest : far, odd_there = odd ? far : farthest;
  return make_uint4(high ? even_there : even_here, high ? odd_there : odd_here, high ? even_here : even_there, high ? odd_here : odd_there);
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
