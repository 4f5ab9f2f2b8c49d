// What the kernels' pipelines share: loads of boxes, and the way of results from a
// warpgroup's accumulators to memory.

#define ROWS (BLOCKS * 64)               // columns of scores in a step, which are rows of memory
#define CHUNKS(dim) (((dim) + 63) / 64)  // of 64 elements: rows of 128 bytes, the swizzle's width
#define CONSUMER_WARPS (4 * WARPGROUPS)

// Accumulator layout of wgmma: a lane holds two rows, `lane / 4` and eight further down, of its warp's
// sixteen. In an array of scores, elements 4 j and 4 j + 1 are the columns 8 j + 2 (lane % 4) and the
// next of the first row, 4 j + 2 and 4 j + 3 those of the second.
#define SCORES (BLOCKS * 32)

// The producer hands registers over to the consumers, unless all have as many as there can be.
#define MOVES_REGISTERS (WARPGROUPS * CTAS > 1)
DEVICE void give_registers() {
#if MOVES_REGISTERS
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
#endif
}
DEVICE void take_registers() {
#if MOVES_REGISTERS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
#endif
}

DEVICE int stage_of(int step) { return step % STAGES; }
DEVICE u32 parity_of(int step) { return step / STAGES & 1; }

DEVICE int additional_steps(int additional) { return ADDITIONAL ? (additional + ROWS - 1) / ROWS : 0; }

// A box of `rows` vectors, chunk after chunk.
DEVICE void load_box(u32 destination, const TensorMap* map, u32 barrier, int chunks, int rows, const int (&at)[3], int head) {
#pragma unroll
  for (int c = 0; c < chunks; c++) tma_load(destination + c * rows * 128, map, barrier, 64 * c, at[2], at[1], at[0], head);
}

// Where the rows of a warpgroup begin, as TMA takes it.
DEVICE void row_box(const Space& space, const Tile& tile, int warpgroup, int (&at)[3]) {
#pragma unroll
  for (int a = 0; a < 3; a++)
    at[a] = coordinate(space, tile, a, tile.row[a] + (a == STACK ? warpgroup * row_extent(a) : 0));
  at[0] += tile.batch * space.batch_step;
}

// Where the blocks of a step begin; `walk` moves on.
DEVICE void column_boxes(const Space& space, const Tile& tile, Walk& walk, int (&at)[BLOCKS][3]) {
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
    for (int a = 0; a < 3; a++) at[b][a] = coordinate(space, tile, a, tile.column[a] + walk.at[a] * column_extent(a));
    at[b][0] += tile.batch * space.batch_step;
    walk.next(tile);
  }
}
// The same for additional tokens, which begin with `token`.
DEVICE void additional_boxes(const Tile& tile, int token, int (&at)[BLOCKS][3]) {
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) at[b][0] = tile.batch, at[b][1] = 0, at[b][2] = token + 64 * b;
}

// Positions of the two rows that a lane of a warpgroup holds.
DEVICE void rows_of_lane(const Tile& tile, int warpgroup, int warp, int lane, int (&at)[2][3]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int member = warp * 16 + lane / 4 + 8 * r;
    at[r][0] = tile.row[0] + member / (ROW_Y * ROW_X);
    at[r][1] = tile.row[1] + member / ROW_X % ROW_Y;
    at[r][2] = tile.row[2] + member % ROW_X;
    at[r][STACK] += warpgroup * row_extent(STACK);
  }
}

// The place of a row among all rows of the tensor, `[batch, tokens.., heads]`.
DEVICE i64 row_index(const Space& space, const Tile& tile, const int (&at)[3]) {
  i64 index = tile.batch;
#pragma unroll
  for (int a = FIRST_AXIS; a < 3; a++)
    index = index * (INVERSE ? space.axes[a].keys : space.axes[a].queries) + token(space, tile, a, at[a]);
  return index * space.heads + tile.head;
}
DEVICE bool row_exists(const Tile& tile, const int (&at)[3]) {
  bool exists = true;
#pragma unroll
  for (int a = FIRST_AXIS; a < 3; a++) exists = exists && at[a] < tile.rows[a];
  return exists;
}

// The steps that hold all that a warpgroup's rows see: `low..high` of one pass over the blocks, without
// additional tokens. Empty for a warpgroup all of whose rows lie outside.
struct Range { int low, high; };
DEVICE Range visible_steps(const Space& space, const Tile& tile, int warpgroup) {
  bool idle = false;
#pragma unroll
  for (int a = 0; a < 3; a++) idle = idle || tile.row[a] + (a == STACK ? warpgroup * row_extent(a) : 0) >= tile.rows[a];
  const int first = tile.row[SLOW] + warpgroup * row_extent(SLOW);
  const int start = window_of<SLOW>(space, tile, first).start - tile.column[SLOW];
  const int end = window_of<SLOW>(space, tile, first + row_extent(SLOW) - 1).end - tile.column[SLOW];
  const int plane = tile.blocks[MIDDLE] * tile.blocks[FAST];
  const int blocks = (end + column_extent(SLOW) - 1) / column_extent(SLOW) * plane;
  Range steps;
  steps.high = min_(tile.steps, (blocks + BLOCKS - 1) / BLOCKS);
  steps.low = min_(steps.high, start / column_extent(SLOW) * plane / BLOCKS);
  if (idle) steps.low = steps.high = 0;
  steps.low = uniform(steps.low), steps.high = uniform(steps.high);
  return steps;
}

// The fragments of a first operand from a swizzled tile: rows `row` and eight below, all k steps.
template <int N> DEVICE void load_fragments(u32 tile, int row, int lane, u32 (&fragments)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int k = i / 4, r = row + (i & 1) * 8, column = k % 4 * 2 + (i >> 1 & 1);
    const u32 address = tile + k / 4 * 8192 + r * 128 + ((column ^ r & 7) << 4) + lane % 4 * 4;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(fragments[i]) : "r"(address));
  }
}

// Accumulators as the first operand of another product.
DEVICE void pack_fragments(const float (&s)[SCORES], u32 (&p)[SCORES / 2]) {
#pragma unroll
  for (int j = 0; j < SCORES / 4; j++) {
    p[2 * j] = pack(s[4 * j], s[4 * j + 1]);
    p[2 * j + 1] = pack(s[4 * j + 2], s[4 * j + 3]);
  }
}

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

// Writes `2 N` columns of one row, the lane's second or first one; all lanes of a quad call it with the
// same row. Gives zero, or NaN where a column is infinite or NaN.
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
  float poison = 0.f;
#pragma unroll
  for (int j = 0; j < N / 4; j++) poison = fmaf(out[4 * j + 2 * second], 0.f, fmaf(out[4 * j + 2 * second + 1], 0.f, poison));
  return poison;
}

// Calls `repair` with each of the warp's rows that is broken, with all lanes.
template <typename Repair> DEVICE void for_each_broken(const bool (&broken)[2], const int (&at)[2][3], Repair repair) {
#pragma unroll 1
  for (int r = 0; r < 2; r++) {
    u32 lanes = __ballot_sync(~0u, r ? broken[1] : broken[0]);
    while (lanes) {
      const int quad = (__ffs(lanes) - 1) / 4;
      lanes &= ~(15u << 4 * quad);
      int row[3];
#pragma unroll
      for (int a = 0; a < 3; a++) row[a] = __shfl_sync(~0u, r ? at[1][a] : at[0][a], 4 * quad);
      __syncwarp();
      repair(row);
    }
  }
}
