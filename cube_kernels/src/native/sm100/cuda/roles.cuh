// What the roles of a CTA share: who works on which tile, rows of threads, and results that cannot be trusted.

// A tile that all roles work on. One without steps is the end.
struct __align__(128) Work {
  Tile tile;
  Range range[2];                // the steps that the rows of each warpgroup see
  u32 broken[8];                 // rows that are to be computed again: a bit for each lane of eight warps
};
constexpr int SLOTS = 2;         // the next tile is found while results of the last are written

DEVICE int slot_of(int tiles) { return tiles % SLOTS; }
DEVICE u32 parity_of_slot(int tiles) { return tiles / SLOTS & 1; }

// The steps in which the rows of warpgroup `w` have something to do, additional tokens included.
DEVICE void find_range(const Space& space, int additional, int w, Work& work) {
  Range range = steps_seen(space, work.tile, w);
  if (additional > 0 && range.low < range.high) range.high = work.tile.steps + additional_steps(additional);
  work.range[w] = range;
}

DEVICE bool is_in(const Range& range, int step) { return step >= range.low && step < range.high; }

// A place in a ring of STAGES.
struct Place {
  int stage = 0;
  u32 parity = 0;
  DEVICE void next() { if (++stage == STAGES) { stage = 0; parity ^= 1; } }
};

// This thread's lane of tensor memory.
DEVICE u32 lane_of(u32 tmem) { return tmem + (u32)(threadIdx.x % 128 / 32 * 32 << 16); }

// 32 columns of a row's results, of which the row has those below `left`; zeros for a row that sees nothing.
DEVICE void store_columns(u16* row, const float (&x)[32], int left, float factor, bool is_blind) {
#pragma unroll
  for (int j = 0; j < 32; j += 8)
    if (j < left) {
      uint4 columns = make_uint4(pack(x[j] * factor, x[j + 1] * factor), pack(x[j + 2] * factor, x[j + 3] * factor),
                                 pack(x[j + 4] * factor, x[j + 5] * factor), pack(x[j + 6] * factor, x[j + 7] * factor));
      if (is_blind) columns = make_uint4(0, 0, 0, 0);
      *(uint4*)(row + j) = columns;
    }
}

// Zero, or NaN where one of these columns is infinite or NaN.
DEVICE float poison_of(const float (&x)[32], int left) {
  float poison = 0.f;
#pragma unroll
  for (int j = 0; j < 32; j++)
    if (j < left) poison = fmaf(x[j], 0.f, poison);
  return poison;
}

// Computes the rows again whose lane is in `lanes`, of warp `warp` of a warpgroup. Called by a whole warp, which has no other work:
// who is in a hurry has no registers for this.
DEVICE void repair_rows(const Params& params, const Tile& tile, int warpgroup, int warp, u32 lanes) {
  while (lanes) {
    int at[3];
    row_of_warpgroup(tile, warpgroup, warp * 32 + __ffs(lanes) - 1, at);
    lanes &= lanes - 1;
    repair_row(params, tile, at, threadIdx.x % 32);
  }
}
