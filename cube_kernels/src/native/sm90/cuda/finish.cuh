// How rows become results: from a warpgroup's accumulators to memory, and again where they cannot be trusted.

// Lanes of a pair hold two adjacent columns each of two groups of eight columns; afterwards the even one has the four of the first group,
// the odd one those of the second. A quad then writes 32 bytes of a row at once, which are a sector of memory.
DEVICE uint2 gather_pair(u32 a, u32 b, int lane) {
  const bool odd = lane & 1;
  const u32 own = odd ? b : a, near = __shfl_xor_sync(~0u, odd ? a : b, 1);
  return odd ? make_uint2(near, own) : make_uint2(own, near);
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
  u32 poison = 0;
  auto columns = [&](int j) {
    const u32 both = pack(out[4 * j + 2 * second] * factor, out[4 * j + 2 * second + 1] * factor);
    if constexpr (BF16) poison = add_poison(poison, both);
    return both;
  };
  // All of them ahead of the stores, which are one branch then.
  uint2 fours[N < 8 ? 1 : N / 8];
#pragma unroll
  for (int i = 0; i < N / 8; i++) fours[i] = gather_pair(columns(2 * i), columns(2 * i + 1), lane);
  const u32 last = N / 4 % 2 ? columns(N / 4 - 1) : 0;
  // The stores have offsets from it, where the compiler would make an address for each.
  u16* const own = row + opaque(q % 2 * 8 + q / 2 * 4);
  if (exists) {
#pragma unroll
    for (int i = 0; i < N / 8; i++) *(uint2*)(own + 16 * i) = fours[i];
    if constexpr (N / 4 % 2) *(u32*)(row + (2 * N - 8) + 2 * q) = last;
  }
  // Finite numbers are so in bf16, too, but for those that float32 ends with: their rows come out the same again.
  if constexpr (BF16) return poison & 0x7FFF7FFF ? NEG_INF - NEG_INF : 0.f;
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
