// What the kernels' pipelines share: stages, registers, descriptors, loads of boxes, and the layout of operands and accumulators.

constexpr int CONSUMER_WARPS = 4 * WARPGROUPS;  // of a pipeline, of which a CTA has TEAMS, each with tiles of its own

// Accumulator layout of wgmma: a lane holds two rows, `lane / 4` and eight further down, of its warp's
// sixteen. In an array of scores, elements 4 j and 4 j + 1 are the columns 8 j + 2 (lane % 4) and the
// next of the first row, 4 j + 2 and 4 j + 3 those of the second.
constexpr int SCORES = BLOCKS * 32;

// The producer hands registers over to the consumers, unless all have as many as there can be.
constexpr bool MOVES_REGISTERS = WARPGROUPS * TEAMS * CTAS > 1;
DEVICE void give_registers() {
  if constexpr (MOVES_REGISTERS) give_registers<PRODUCER_REGISTERS>();
}
DEVICE void take_registers() {
  if constexpr (MOVES_REGISTERS) take_registers<CONSUMER_REGISTERS>();
}

DEVICE int stage_of(int step) { return step % STAGES; }
DEVICE u32 parity_of(int step) { return step / STAGES & 1; }

// Descriptor of a matrix in shared memory with the swizzle.
DEVICE u64 swizzled(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)(leading_bytes >> 4) << 16) | ((u64)(stride_bytes >> 4) << 32) | ((u64)(SWIZZLE == 128 ? 1 : 2) << 62);
}
// Descriptor of a matrix in shared memory without swizzle.
DEVICE u64 unswizzled(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)(leading_bytes >> 4) << 16) | ((u64)(stride_bytes >> 4) << 32);
}

// Positions of the two rows that a lane holds.
DEVICE void rows_of_lane(const Tile& tile, int warpgroup, int warp, int lane, int (&at)[2][PLACE]) {
#pragma unroll
  for (int r = 0; r < 2; r++) row_of_warpgroup(tile, warpgroup, warp * 16 + lane / 4 + 8 * r, at[r]);
}

// The fragments of a first operand from a swizzled tile: rows `row` and eight below, all k steps.
template <int N> DEVICE void load_fragments(u32 tile, int row, int lane, u32 (&fragments)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int k = i / 4, r = row + (i & 1) * 8, column = k % 4 * 2 + (i >> 1 & 1);
    const int turned = column ^ r / (128 / SWIZZLE) & SWIZZLE / 16 - 1;
    const u32 address = tile + k / 4 * 64 * SWIZZLE + r * SWIZZLE + (turned << 4) + lane % 4 * 4;
    fragments[i] = load_word(address);
  }
}

// Sets the sums of a row, the lane's second or first one, to zero.
template <int N> DEVICE void forget_row(float (&sums)[N], int second) {
#pragma unroll
  for (int j = 0; j < N / 4; j++) sums[4 * j + 2 * second] = sums[4 * j + 2 * second + 1] = 0.f;
}

// Accumulators as the first operand of another product.
DEVICE void pack_fragments(const float (&s)[SCORES], u32 (&p)[SCORES / 2]) {
#pragma unroll
  for (int j = 0; j < SCORES / 4; j++) {
    p[2 * j] = pack(s[4 * j], s[4 * j + 1]);
    p[2 * j + 1] = pack(s[4 * j + 2], s[4 * j + 3]);
  }
}
