// How columns outside a row's window are kept out of it. Compile-time parameter MASK:
//
// NONE     every row of a warpgroup sees every column of every block that the warpgroup visits.
// LINEAR   one axis, or one whose neighbors hide nothing: comparisons, in the steps that are not visible whole.
// ONE_HOT  two and three axes: one more product on the tensor cores, in every step.
// BY_ITEM  listed blocks: comparisons, in the last steps, see listed.cuh.
//
// One-hot masks. The columns of a block have at most 16 coordinates over all axes, or 32. Row n of a constant
// matrix B has a one (57344, the largest e5m2) at each coordinate of column n; row m of A has -57344 at
// each coordinate that the window of row m excludes. Their product is 0 for a visible column and at most
// -57344^2 = -3.3e9 for any other; the scores are accumulated on top of it. With BLOCKS = 2 both blocks
// of a step share one instruction: the second block uses the slots 16 to 31. So does a block of more than 16 coordinates, if it has a step for
// itself (SETS).
// Where scores begin with the entries of a bias (WIDE_MASK), the product is added to them. Sums of 8-bit products may be kept to some 14
// bits, so that operands are bf16 then: 32768 in B and, of two equal bytes, -101888 in A, -3.34e9 together.
// A raw score (before the scale) near 3.3e9 that a row does not see can break through such a mask. A row
// whose largest masked score is beyond 2^24 or so is computed again, as is one that became infinite or NaN, see
// finish.cuh. What is left is an unseen score within some 2^24 of a multiple of 3.288e9 where no seen one comes
// near: float32 knows scores of that size to no better than 256.

// Values of MASK.
enum { NONE = 0, LINEAR = 1, ONE_HOT = 2, BY_ITEM = 3 };

// Slots of an axis, in fours: each lane of a quad owns four consecutive slots of one axis. An axis needs
// none where a CTA holds one row and a block one column: the blocks are then just that row's window. Not so
// where that of a query may be empty, as there is one block all the same.
DEVICE constexpr int slots_of(int axis) {
  return axis < FIRST_AXIS || is_single(axis) && (INVERSE || !ORIGIN) ? 0 : (column_extent(axis) + 3) / 4 * 4;
}
constexpr int SLOTS_Z = slots_of(0), SLOTS_Y = slots_of(1), SLOTS_X = slots_of(2);
constexpr float TRUSTED_SCORE = 16777216.f;
// Scores of what a row does not see are not above it. What it sees down there is nothing beside a score that is trusted.
DEVICE float unseen() { return MASK == ONE_HOT ? -4.f * TRUSTED_SCORE : NEG_INF; }
constexpr int SETS = MASK == ONE_HOT && SLOTS_Z + SLOTS_Y + SLOTS_X > 16 ? 2 : 1;  // of 16 slots, for a block
constexpr int ONE_HOT_BYTES = MASK == ONE_HOT ? ROWS * 32 : 0;
constexpr bool BIAS_FIRST = BIAS && BLOCKS == 1;  // scores begin with the bias
constexpr bool WIDE_MASK = MASK == ONE_HOT && BIAS_FIRST;
static_assert(BLOCKS * SETS <= 2 && (SETS == 1 || !WIDE_MASK), "a product has 32 slots, or 16 wide ones");

DEVICE constexpr int slot_axis(int slot) { return slot < SLOTS_Z ? 0 : slot < SLOTS_Z + SLOTS_Y ? 1 : slot < SLOTS_Z + SLOTS_Y + SLOTS_X ? 2 : 3; }
DEVICE constexpr int slot_coordinate(int slot) {
  return slot < SLOTS_Z ? slot : slot < SLOTS_Z + SLOTS_Y ? slot - SLOTS_Z : slot - SLOTS_Z - SLOTS_Y;
}

// Writes B. Called by all threads of the CTA.
DEVICE void write_one_hot(u8* table) {
  constexpr int DEPTH = WIDE_MASK ? 16 : 32;
  for (int i = threadIdx.x; i < ROWS * DEPTH; i += blockDim.x) {
    // Of 16 bits a lane's four slots are not one behind the other.
    const int n = i / DEPTH, k = i % DEPTH, column = n % BLOCK, slot = WIDE_MASK ? k % 8 / 2 * 4 + k / 8 * 2 + k % 2 : k % (16 * SETS);
    const int at[3] = {column / (COLUMN_Y * COLUMN_X), column / COLUMN_X % COLUMN_Y, column % COLUMN_X};
    const int axis = slot_axis(slot);
    const bool hot = (WIDE_MASK || k / (16 * SETS) == n / BLOCK) && axis < 3 && slot_coordinate(slot) == (axis == 0 ? at[0] : axis == 1 ? at[1] : at[2]);
    u8* const line = table + n / 8 * 256 + k / (DEPTH / 2) * 128 + n % 8 * 16;
    if constexpr (WIDE_MASK) ((u16*)line)[k % 8] = hot ? 0x4700 : 0;
    else line[k % 16] = hot ? 0x7B : 0;
  }
}

// The columns that a row sees along an axis which is known by its numbers.
template <bool Causal, class Axis> DEVICE Window own_window(const Axis& axis, int shift, int row, int rows, int columns) {
  if constexpr (INVERSE) return window_of_key<Causal, STRIDED, ORIGIN>(axis, shift, row, rows, columns);
  else return window_of_query<Causal, STRIDED, ORIGIN>(axis, shift, row, rows, columns);
}

// The two rows of A that a lane holds.
struct OneHotRows {
  int axis[SETS], slot[SETS];         // of this lane's four slots
  int start[SETS][2], end[SETS][2];   // window of each row along that axis, from this lane's first slot, in bits of a fragment
  u32 shifts[8];                // of the coming step, see `aim`
  u32 fragment[4];

  DEVICE void start_lane(int lane) {
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      axis[set] = slot_axis(16 * set + lane % 4 * 4);
      slot[set] = slot_coordinate(16 * set + lane % 4 * 4);
    }
  }

  // Lanes differ in their axes: each picks the numbers of its own, and none waits for branches that others take, where there are
  // registers for it. Slots of no axis take those of the last.
  static constexpr bool PICKS = WARPGROUPS < 3 && !BIAS;
  DEVICE int pick(int set, int z, int y, int x) const { return SLOTS_Z > 0 && axis[set] == 0 ? z : SLOTS_Y > 0 && axis[set] == 1 ? y : x; }

  DEVICE void start_tile(const Space& space, const Tile& tile, const int (&row)[2][PLACE]) {
#pragma unroll
    for (int set = 0; set < SETS; set++) start_set(space, tile, row, set);
  }

  DEVICE void start_set(const Space& space, const Tile& tile, const int (&row)[2][PLACE], int set) {
    const int own_axis = axis[set];
    if constexpr (PICKS) {
      const AxisParams(&axes)[3] = space.axes;
      const int rows = pick(set, tile.rows[0], tile.rows[1], tile.rows[2]), columns = pick(set, tile.columns[0], tile.columns[1], tile.columns[2]);
      const int origin = pick(set, tile.column[0], tile.column[1], tile.column[2]) + slot[set];
      struct { int kernel, stride; } own;
      own.kernel = pick(set, axes[0].kernel, axes[1].kernel, axes[2].kernel);
      own.stride = STRIDED ? pick(set, axes[0].stride, axes[1].stride, axes[2].stride) : 1;
#if ORIGIN
      const int shift = pick(set, tile.shift[0], tile.shift[1], tile.shift[2]);
#else
      constexpr int shift = 0;
#endif
      constexpr int AXES = 7 & 7 << FIRST_AXIS, CAUSAL_AXES = CAUSAL & AXES;
      const bool causal = CAUSAL_AXES == AXES || CAUSAL_AXES && CAUSAL >> own_axis & 1;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int at = pick(set, row[r][0], row[r][1], row[r][2]);
        Window w, other;
        if constexpr (CAUSAL_AXES != AXES) w = own_window<false>(own, shift, at, rows, columns);
        if constexpr (CAUSAL_AXES != 0) other = own_window<true>(own, shift, at, rows, columns);
        if (causal) w = other;
        // Slots of no axis see everything.
        start[set][r] = own_axis < 3 ? 8 * (w.start - origin) : -(1 << 28);
        end[set][r] = own_axis < 3 ? 8 * (w.end - origin) : 1 << 28;
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        Window w = {-(1 << 20), 1 << 20};
        int origin = 0;
        if (own_axis == 0) w = window_of<0>(space, tile, row[r][0]), origin = tile.column[0];
        if (own_axis == 1) w = window_of<1>(space, tile, row[r][1]), origin = tile.column[1];
        if (own_axis == 2) w = window_of<2>(space, tile, row[r][2]), origin = tile.column[2];
        start[set][r] = 8 * (w.start - origin - slot[set]);
        end[set][r] = 8 * (w.end - origin - slot[set]);
      }
    }
  }

  // Whether the slots of a set are of axes along which a tile has several blocks.
  static DEVICE constexpr bool moves(int set) {
    bool any = false;
    for (int slot = 16 * set; slot < 16 * set + 16; slot += 4) any = any || slot_axis(slot) < 3 && !has_one_block(slot_axis(slot));
    return any;
  }

  // The shift amounts for the blocks at `walk`, which moves on: in front of what the rows see, and behind it.
  DEVICE void aim(const Tile& tile, Walk& walk) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
#pragma unroll
      for (int set = 0; set < SETS; set++) {
        const int own_axis = axis[set], step_z = 8 * COLUMN_Z, step_y = 8 * COLUMN_Y, step_x = 8 * COLUMN_X;
        const int offset = PICKS ? pick(set, walk.at[0], walk.at[1], walk.at[2]) * pick(set, step_z, step_y, step_x)
                           : own_axis == 0 ? walk.at[0] * step_z : own_axis == 1 ? walk.at[1] * step_y : own_axis == 2 ? walk.at[2] * step_x : 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int i = 4 * (block + set) + 2 * r;
          shifts[i] = max_(0, start[set][r] - offset);
          shifts[i + 1] = max_(0, end[set][r] - offset);
        }
      }
      walk.next(tile);
    }
  }

  // Every column is visible.
  DEVICE void aim_nowhere() {
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS * SETS; i++) shifts[i] = i % 2 * 32;
  }

  // Writes the fragment, of whose bytes those are hidden that lie in front of a row's window or behind it. What does not move stays as it is
  // from a tile's first step on. No wgmma may be in flight.
  DEVICE void fire(bool is_first) {
    constexpr u32 HIDDEN = WIDE_MASK ? 0xC7C7C7C7u : 0xFBFBFBFBu;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i >= 2 * BLOCKS * SETS) fragment[i] = 0u;
      else if (is_first || WIDE_MASK || ADDITIONAL || moves(SETS > 1 ? i / 2 : 0)) fragment[i] = HIDDEN & ~(shift_left(~0u, shifts[2 * i]) & ~shift_left(~0u, shifts[2 * i + 1]));
    }
    if constexpr (WIDE_MASK) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        fragment[2 + r] = __byte_perm(fragment[r], 0, 0x3322);
        fragment[r] = __byte_perm(fragment[r], 0, 0x1100);
      }
    }
  }
};

// Sets the scores outside `start..end` to -inf; column 0 of the step is at position `offset`.
DEVICE void mask_linear(float (&s)[SCORES], const int (&start)[2], const int (&end)[2], int offset, int lane) {
  const int column = offset + lane % 4 * 2;
  const u32 low_a = start[0] - column, low_b = start[1] - column;
  const u32 size_a = end[0] - start[0], size_b = end[1] - start[1];
#pragma unroll
  for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if (8 * j + e - low_a >= size_a) s[4 * j + e] = NEG_INF;
      if (8 * j + e - low_b >= size_b) s[4 * j + 2 + e] = NEG_INF;
    }
}

// The axis along which LINEAR columns are hidden, and columns from one position along it to the next: a block has all of those
// of the faster axes, and every row sees them.
constexpr int LINE = STACK;
constexpr int LINE_PITCH = (LINE < 1 ? column_extent(1) : 1) * (LINE < 2 ? column_extent(2) : 1);

// The windows of the two rows that a lane holds, along that axis.
struct LinearRows {
  int start[2], end[2];         // from the tile's first column
  int whole_from, whole_to;     // the columns that all rows of the warpgroup see

  DEVICE void start_tile(const Space& space, const Tile& tile, int warpgroup, const int (&row)[2][PLACE]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const Window w = window_of<LINE>(space, tile, row[r][LINE]);
      start[r] = (w.start - tile.column[LINE]) * LINE_PITCH;
      end[r] = (w.end - tile.column[LINE]) * LINE_PITCH;
    }
    const int first = tile.row[LINE] + warpgroup * row_extent(LINE);
    whole_from = uniform(window_of<LINE>(space, tile, first + row_extent(LINE) - 1).start - tile.column[LINE]) * LINE_PITCH;
    whole_to = uniform(window_of<LINE>(space, tile, first).end - tile.column[LINE]) * LINE_PITCH;
  }
};

#if LISTED
// Sets the scores to -inf that the items of a step do not show to the two rows of a lane.
DEVICE void mask_items(float (&s)[SCORES], const Listed& listed, const Tile& tile, const u64* items, int warp, int lane) {
  // One row after the other, and what it needs in loops: registers are short.
#pragma unroll
  for (int r = 0; r < 2; r++) {
    u32 hidden = 0;              // a bit for each of the row's scores
#pragma unroll 1
    for (int b = 0; b < BOXES; b++) {
      int row[PLACE];
      row_of_warpgroup(tile, 0, opaque(warp * 16 + lane / 4) + 8 * r, row);
      const Seen seen(listed, tile, row, Item(items[b]));
#pragma unroll 1
      for (int i = 0; i < BLOCK / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int n = 8 * i + lane % 4 * 2 + e;
          const bool has = seen.has(n / (COLUMN_Y * COLUMN_X) % COLUMN_Z, n / COLUMN_X % COLUMN_Y, n % COLUMN_X);
          hidden |= (u32)!has << 2 * (b * (BLOCK / 8) + i) + e;
        }
    }
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (hidden >> 2 * j + e & 1) s[4 * j + 2 * r + e] = NEG_INF;
  }
}
#endif

// Takes out of the scores of a step what the one-hot product has not.
DEVICE void mask_step(float (&s)[SCORES], const LinearRows& rows, const Tile& tile, int step, int additional, int lane) {
  if constexpr (MASK == LINEAR) {
    const int offset = step * ROWS;
    if ((!ADDITIONAL || step < tile.steps) && (offset < rows.whole_from || offset + ROWS > rows.whole_to))
      mask_linear(s, rows.start, rows.end, offset, lane);
  }
  if constexpr (ADDITIONAL) {
    const int token = (step - tile.steps) * ROWS;
    if (token + ROWS > additional) {
      const int from[2] = {0, 0}, to[2] = {additional, additional};
      mask_linear(s, from, to, token, lane);
    }
  }
}
