// Boxes of rows and columns in shared memory, and what lies where in them.

#if !defined SWIZZLE
constexpr int SWIZZLE = 128;     // bytes of a row of shared memory: 64 where no vector is longer
#endif

// Rows that a vector takes, as many elements each as there is room for.
DEVICE constexpr int chunks_of(int dim) { return (2 * dim + SWIZZLE - 1) / SWIZZLE; }

// A box of `rows` vectors, chunk after chunk.
DEVICE void load_box(u32 destination, const TensorMap* map, u32 barrier, int chunks, int rows, const int (&at)[3], int head) {
#pragma unroll
  for (int c = 0; c < chunks; c++) tma_load(destination + c * rows * SWIZZLE, map, barrier, SWIZZLE / 2 * c, at[2], at[1], at[0], head);
}

// The position of a row of a warpgroup.
DEVICE void row_of_warpgroup(const Tile& tile, int warpgroup, int member, int (&at)[PLACE]) {
#if LISTED
  at[3] = tile.head + member / (ROW_Z * ROW_Y * ROW_X);
  member %= ROW_Z * ROW_Y * ROW_X;
  warpgroup = 0;                 // each has a tile of its own
#endif
  at[0] = tile.row[0] + member / (ROW_Y * ROW_X);
  at[1] = tile.row[1] + member / ROW_X % ROW_Y;
  at[2] = tile.row[2] + member % ROW_X;
  at[STACK] += warpgroup * row_extent(STACK);
#if !LISTED
  // Rows that no box fills lie outside of every axis.
  if (ROW_BOX < 64 && member >= ROW_BOX) at[2] = 1 << 20;
#endif
}
