// What kernels are told of a relative position bias, and the entry of a row and a column. Compile-time parameters: BIAS, with
// BIAS_Z, BIAS_Y, BIAS_X, the entries along each axis.

struct Bias {
  const u16* entries;            // [heads, z, y, x]
  float* sums;                   // of the CTAs of this launch, see bias.cu
  int samples;                   // whose tiles come before those of the next head; 0 where heads take turns
  int rows;                      // of `sums`, for each head
};

constexpr int BIAS_ENTRIES = BIAS_Z * BIAS_Y * BIAS_X;
DEVICE constexpr int bias_extent(int a) { return a == 0 ? BIAS_Z : a == 1 ? BIAS_Y : BIAS_X; }

// For a row that sees the column.
DEVICE float bias_of(const Bias& bias, int head, const int (&row)[PLACE], const int (&column)[3]) {
  int entry = head;
#pragma unroll
  for (int a = 0; a < 3; a++) entry = entry * bias_extent(a) + bias_extent(a) / 2 + (INVERSE ? row[a] - column[a] : column[a] - row[a]);
  return unpack(bias.entries[entry]);
}
