// Products of sixteen rows with a block of shared memory: vectors in pieces of 16 bytes, eight of them a row of 128 bytes, swizzled as TMA
// does. A block has so many vectors that it is a multiple of 1024 bytes for each eight pieces.

constexpr int SWIZZLE = 128;
constexpr int PLACE = 2;         // token and head of a row, for finish.cuh
DEVICE constexpr int chunks_of(int dim) { return (2 * dim + SWIZZLE - 1) / SWIZZLE; }

// The place of a piece of a vector, of a block of so many.
template <int BLOCK> DEVICE u32 piece(u32 block, int row, int column) { return block + (column / 8 * BLOCK + row) * SWIZZLE + ((column % 8 ^ row % 8) << 4); }

// The first operand of a depth of sixteen from a block, by its rows from the first one on.
template <int BLOCK> DEVICE void load_left(u32 (&a)[4], u32 block, int first, int k, int lane) {
  load_matrices(a, piece<BLOCK>(block, first + lane % 16, 2 * k + lane / 16));
}

// s += a b^T over a depth of sixteen, with the rows of a block from the first one on as b.
template <int BLOCK, int N> DEVICE void multiply_rows(float (&s)[N], const u32* a, u32 block, int first, int k, int lane) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    u32 b[4];
    load_matrices(b, piece<BLOCK>(block, first + 16 * j + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
    mma(s + 8 * j, a, b[0], b[1]);
    mma(s + 8 * j + 4, a, b[2], b[3]);
  }
}

// out += p b, with the rows of a block from the first one on, as many as p has columns, as b.
template <int BLOCK, int N, int M> DEVICE void multiply_columns(float (&out)[N], const u32 (&p)[M], u32 block, int first, int lane) {
#pragma unroll
  for (int k = 0; k < M / 4; k++)
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      u32 b[4];
      load_transposed(b, piece<BLOCK>(block, first + 16 * k + lane % 16, 2 * j + lane / 16));
      mma(out + 8 * j, p + 4 * k, b[0], b[1]);
      mma(out + 8 * j + 4, p + 4 * k, b[2], b[3]);
    }
}

template <int N> DEVICE void clear(float (&s)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) s[i] = 0.f;
}

// Accumulators as the first operand of another product.
template <int N> DEVICE void pack_left(const float (&s)[N], u32 (&p)[N / 2]) {
#pragma unroll
  for (int j = 0; j < N / 4; j++) {
    p[2 * j] = pack(s[4 * j], s[4 * j + 1]);
    p[2 * j + 1] = pack(s[4 * j + 2], s[4 * j + 3]);
  }
}
