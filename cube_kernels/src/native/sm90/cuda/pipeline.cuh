// What the kernels' pipelines share: stages, registers, descriptors, loads of boxes, and the layout of operands and accumulators.

constexpr int CONSUMER_WARPS = 4 * WARPGROUPS;  // of a pipeline, of which a CTA has TEAMS, each with tiles of its own

// A step's columns, and where they are summed over, in products of 16. With fewer than 64 a stage may end with rows that no box fills, which
// are zeros, as weights are that meet them.
constexpr int STAGE_ROWS = (ROWS + 15) / 16 * 16;
constexpr int FRAGMENTS = STAGE_ROWS / 4;  // registers for weights

// Accumulator layout of wgmma: a lane holds two rows, `lane / 4` and eight further down, of its warp's
// sixteen. In an array of scores, elements 4 j and 4 j + 1 are the columns 8 j + 2 (lane % 4) and the
// next of the first row, 4 j + 2 and 4 j + 3 those of the second.
constexpr int SCORES = ROWS / 2;

// The producer hands registers over to the consumers, unless all have as many as there can be.
constexpr bool MOVES_REGISTERS = WARPGROUPS * TEAMS * CTAS > 1;
DEVICE void give_registers() {
  if constexpr (MOVES_REGISTERS) give_registers<PRODUCER_REGISTERS>();
}
DEVICE void take_registers() {
  if constexpr (MOVES_REGISTERS) take_registers<CONSUMER_REGISTERS>();
}

DEVICE u32 stage_of(u32 step) { return step % STAGES; }
DEVICE u32 parity_of(u32 step) { return step / STAGES & 1; }

// A descriptor of a matrix in shared memory.
struct Matrix {
  u64 bits;
  // Of the matrix so many times 16 bytes behind.
  DEVICE u64 at(u32 sixteens) const {
#if SUM_BIAS
    // The compiler keeps descriptors in registers of each lane there, where a carry would be an addition of its own.
    return bits >> 32 << 32 | ((u32)bits + sixteens);
#else
    return bits + sixteens;
#endif
  }
  DEVICE Matrix behind(u32 sixteens) const { return {at(sixteens)}; }
};
DEVICE Matrix matrix(u32 address, u32 leading_bytes, u32 stride_bytes, u32 swizzle) {
  return {(u64)(stride_bytes >> 4 | swizzle << 30) << 32 | leading_bytes >> 4 << 16 | address >> 4};
}
DEVICE Matrix swizzled(u32 address, u32 leading_bytes, u32 stride_bytes) { return matrix(address, leading_bytes, stride_bytes, SWIZZLE == 128 ? 1 : 2); }
DEVICE Matrix unswizzled(u32 address, u32 leading_bytes, u32 stride_bytes) { return matrix(address, leading_bytes, stride_bytes, 0); }

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

template <int N> DEVICE void clear(float (&sums)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) sums[i] = 0.f;
}

// Sets the sums of a row, the lane's second or first one, to zero.
template <int N> DEVICE void forget_row(float (&sums)[N], int second) {
#pragma unroll
  for (int j = 0; j < N / 4; j++) sums[4 * j + 2 * second] = sums[4 * j + 2 * second + 1] = 0.f;
}

// Accumulators as the first operand of another product.
DEVICE void pack_fragments(const float (&s)[SCORES], u32 (&p)[FRAGMENTS]) {
#pragma unroll
  for (int j = 0; j < SCORES / 4; j++) {
    p[2 * j] = pack(s[4 * j], s[4 * j + 1]);
    p[2 * j + 1] = pack(s[4 * j + 2], s[4 * j + 3]);
  }
#pragma unroll
  for (int i = SCORES / 2; i < FRAGMENTS; i++) p[i] = 0;
}
