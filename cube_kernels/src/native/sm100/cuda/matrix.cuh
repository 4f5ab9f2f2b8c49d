// Descriptors of matrices and products, and products of whole tiles.

constexpr int CHUNK = 128 * 128;  // bytes of 128 rows of 64 elements

// A matrix in shared memory whose rows of 128 bytes are swizzled, as TMA leaves it. Tiles begin at multiples of 1,024 bytes.
// K-major: `stride_bytes` from 8 rows to the next, the other is not used. MN-major: `leading_bytes` from 64 elements to the
// next 64, `stride_bytes` from 8 rows of K to the next.
DEVICE u64 swizzled(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return (u64)((address & 0x3FFFF) >> 4) | (u64)(leading_bytes >> 4) << 16 | (u64)(stride_bytes >> 4) << 32 | (u64)1 << 46 |
         (u64)2 << 61;
}
// Rows of vectors: what is summed over lies side by side.
DEVICE u64 vectors(u32 address) { return swizzled(address, 16, 1024); }
// The same memory where rows are what is summed over.
DEVICE u64 summed_rows(u32 address) { return swizzled(address, CHUNK, 1024); }
// From a descriptor to one of memory so many bytes further on.
DEVICE u64 bytes_on(int bytes) { return (u64)(bytes >> 4); }

// A product of 128 rows and N columns in f32; `is_second_transposed` where rows of the second operand are what is summed over.
DEVICE constexpr u32 instruction(int n, bool is_second_transposed) {
  return 1u << 4 | (BF16 ? 1u << 7 | 1u << 10 : 0u) | (is_second_transposed ? 1u << 16 : 0u) | (u32)(n >> 3) << 17 | 128u >> 4 << 24;
}

// d = a b^T, 128 x 128, of vectors of DIM elements: 16 of them are 32 bytes, 64 a chunk. Boxes hold zeros behind the last.
template <int N> DEVICE void dot_products(u32 d, u64 a, u64 b) {
#pragma unroll
  for (int i = 0; i < (N + 15) / 16; i++) {
    const u64 step = bytes_on(i / 4 * CHUNK + i % 4 * 32);
    mma_shared(d, a + step, b + step, instruction(128, false), i > 0);
  }
}

// Columns of a sum of vectors: sums are read 32 columns at a time.
DEVICE constexpr int width_of(int dim) { return (dim + 31) / 32 * 32; }

// d += a b: 128 weights of each row, in tensor memory, times 128 vectors of N elements. 16 weights are 8 columns, 64 of them lie
// `HALF` columns from the next 64; 16 vectors are 2,048 bytes.
template <int N, int HALF> DEVICE void add_weighted(u32 d, u32 a, u64 b, bool is_first) {
#pragma unroll
  for (int i = 0; i < 8; i++)
    mma_tensor(d, a + i / 4 * HALF + i % 4 * 8, b + bytes_on(i * 2048), instruction(width_of(N), true), !is_first || i > 0);
}

// Of vectors that come in chunks of 64 elements: what chunk `c` of both adds to d = a b^T.
template <int N> DEVICE void add_dot_products(int c, u32 d, u64 a, u64 b) {
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (64 * c + 16 * i < N) mma_shared(d, a + bytes_on(i * 32), b + bytes_on(i * 32), instruction(128, false), c + i > 0);
}
// What 128 weights of each row add to the columns of chunk `c` of a sum.
template <int N, int HALF> DEVICE void add_weighted_chunk(int c, u32 d, u32 a, u64 b, bool is_first) {
  const int width = width_of(N) - 64 * c < 64 ? width_of(N) - 64 * c : 64;
#pragma unroll
  for (int i = 0; i < 8; i++)
    mma_tensor(d + 64 * c, a + i / 4 * HALF + i % 4 * 8, b + bytes_on(i * 2048), instruction(width, true), !is_first || i > 0);
}
