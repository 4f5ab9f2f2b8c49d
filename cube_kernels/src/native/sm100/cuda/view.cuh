// What a row sees of a block, as a bit for each of its 128 columns: a thread has a whole row or half of it, and a window is a box.

static_assert(BLOCK == 128 && BLOCKS == 1, "a step is a block of 128 columns");

// Bits `start` up to `end` of 32.
DEVICE u32 bits_between(int start, int end) {
  const u32 below_end = (u32)(((u64)1 << min_(max_(end, 0), 32)) - 1), below_start = (u32)(((u64)1 << min_(max_(start, 0), 32)) - 1);
  return below_end & ~below_start;
}

// Windows of a row along each axis, from the first column of its tile; of additional tokens, or of a block, from the first of those.
struct View {
  int start[3], end[3];

  DEVICE void start_tile(const Space& space, const Tile& tile, const int (&row)[3]) {
    const Window z = FIRST_AXIS == 0 ? window_of<0>(space, tile, row[0]) : Window{0, 1};
    const Window y = FIRST_AXIS <= 1 ? window_of<1>(space, tile, row[1]) : Window{0, 1};
    const Window x = window_of<2>(space, tile, row[2]);
    start[0] = z.start - tile.column[0], end[0] = z.end - tile.column[0];
    start[1] = y.start - tile.column[1], end[1] = y.end - tile.column[1];
    start[2] = x.start - tile.column[2], end[2] = x.end - tile.column[2];
  }

  DEVICE View of_block(const Walk& walk) const {
    View view;
#pragma unroll
    for (int a = 0; a < 3; a++) {
      view.start[a] = start[a] - walk.at[a] * column_extent(a);
      view.end[a] = end[a] - walk.at[a] * column_extent(a);
    }
    return view;
  }

  DEVICE bool is_whole() const {
    bool whole = true;
#pragma unroll
    for (int a = FIRST_AXIS; a < 3; a++) whole = whole && start[a] <= 0 && end[a] >= column_extent(a);
    return whole;
  }

  // Line `n` of the block along the fastest axis.
  DEVICE bool sees_line(int n) const {
    const int y = n % COLUMN_Y, z = n / COLUMN_Y;
    const bool sees_y = FIRST_AXIS > 1 || (y >= start[1] && y < end[1]), sees_z = FIRST_AXIS > 0 || (z >= start[0] && z < end[0]);
    return sees_y && sees_z;
  }

  // Columns 32 w to 32 w + 31.
  DEVICE u32 word(int w) const {
    if constexpr (COLUMN_X >= 32) {
      const int x = w * 32 % COLUMN_X;
      return sees_line(w * 32 / COLUMN_X) ? bits_between(start[2] - x, end[2] - x) : 0u;
    } else {
      const u32 line = bits_between(start[2], min_(end[2], COLUMN_X));
      u32 bits = 0;
#pragma unroll
      for (int i = 0; i < 32 / COLUMN_X; i++)
        if (sees_line(w * (32 / COLUMN_X) + i)) bits |= line << i * COLUMN_X;
      return bits;
    }
  }
};

// The columns of a step that a row sees: WORDS of 32, the first of which is number FIRST.
template <int WORDS> struct Seen {
  bool all;                      // of them, for each row of the warp
  u32 words[WORDS];

  // Called by whole warps.
  DEVICE void aim(const View& tile_view, const Walk& walk, bool is_additional, int additional, int first) {
    const View view = tile_view.of_block(walk);
    all = __all_sync(~0u, is_additional ? additional >= 128 : view.is_whole());
    if (all) return;
#pragma unroll
    for (int w = 0; w < WORDS; w++)
      words[w] = is_additional ? bits_between(0, additional - 32 * (first + w)) : view.word(first + w);
  }

  // Sets those of N columns, from word `from` on, that are not seen to `hidden`.
  template <int N> DEVICE void apply(float (&x)[N], int from, float hidden) const {
    if (all) return;
#pragma unroll
    for (int w = 0; w < N / 32; w++)
#pragma unroll
      for (int j = 0; j < 32; j++)
        if (!(words[from + w] >> j & 1)) x[32 * w + j] = hidden;
  }
};
