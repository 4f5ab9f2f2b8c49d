// The order in which a tile's blocks of columns are visited: all blocks of its box, in steps of BLOCKS, then the
// additional tokens.

// Bit a: no tile has more than one block along axis a.
#if !defined ONE_BLOCK
constexpr int ONE_BLOCK = 0;
#endif

constexpr int BLOCK = COLUMN_H * COLUMN_Z * COLUMN_Y * COLUMN_X;  // a box of columns
constexpr int ROWS = BLOCKS * (LISTED ? 64 : BLOCK);  // columns of scores in a step, which are rows of memory
constexpr int BOXES = ROWS / BLOCK;

// Whether a walk stays where it is along an axis. Along the slow one it runs on behind the last block, where steps have two.
DEVICE constexpr bool has_one_block(int a) { return a < FIRST_AXIS || ONE_BLOCK >> a & 1 && (a != SLOW || BLOCKS == 1); }

// Walks over the blocks of a tile.
struct Walk {
  int at[3];
  DEVICE void start(const Tile& tile, int block) {
    const int fast = has_one_block(FAST) ? 1 : tile.blocks[FAST], middle = has_one_block(MIDDLE) ? 1 : tile.blocks[MIDDLE];
    at[FAST] = block % fast;
    block /= fast;
    at[MIDDLE] = block % middle;
    at[SLOW] = has_one_block(SLOW) ? 0 : block / middle;
  }
  // Behind the last block the slow axis runs on: such a block lies outside every window.
  DEVICE void next(const Tile& tile) {
    if (!has_one_block(FAST) && ++at[FAST] < tile.blocks[FAST]) return;
    at[FAST] = 0;
    if (!has_one_block(MIDDLE) && ++at[MIDDLE] < tile.blocks[MIDDLE]) return;
    at[MIDDLE] = 0;
    if (!has_one_block(SLOW)) at[SLOW]++;
  }
};

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
  for (int b = 0; b < BLOCKS; b++) at[b][0] = tile.batch, at[b][1] = 0, at[b][2] = token + BLOCK * b;
}

DEVICE int additional_steps(int additional) { return ADDITIONAL ? (additional + ROWS - 1) / ROWS : 0; }

// Whether the rows are keys that no query sees, by an axis that hides none of a block's columns.
DEVICE bool is_unseen(const Space& space, const Tile& tile) {
  bool unseen = false;
  if constexpr (INVERSE && is_single(0)) unseen = unseen || window_of<0>(space, tile, tile.row[0]).end <= tile.column[0];
  if constexpr (INVERSE && is_single(1)) unseen = unseen || window_of<1>(space, tile, tile.row[1]).end <= tile.column[1];
  if constexpr (INVERSE && is_single(2)) unseen = unseen || window_of<2>(space, tile, tile.row[2]).end <= tile.column[2];
  return unseen;
}

// The steps that hold all that a warpgroup's rows see: `low..high` of one pass over the blocks, without
// additional tokens. Empty for a warpgroup all of whose rows lie outside.
struct Range { int low, high; };
DEVICE Range steps_seen(const Space& space, const Tile& tile, int warpgroup) {
  bool idle = is_unseen(space, tile);
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
  // Rows that see nothing have results: of a step that they see nothing of.
  if (ORIGIN && !INVERSE && steps.low == steps.high) steps.low = min_(steps.low, tile.steps - 1), steps.high = steps.low + 1;
  if (idle) steps.low = steps.high = 0;
  return steps;
}

// The same, for all threads of whole warps.
DEVICE Range visible_steps(const Space& space, const Tile& tile, int warpgroup) {
  if constexpr (WARPGROUPS == 1) {
    // A tile with steps has rows, and its blocks are laid around what they see: all of them, or, of keys that nobody sees, none.
    const bool none = INVERSE && window_of<SLOW>(space, tile, tile.row[SLOW] + row_extent(SLOW) - 1).end <= tile.column[SLOW];
    return {0, uniform(none || is_unseen(space, tile) ? 0 : tile.steps)};
  }
  Range steps = steps_seen(space, tile, warpgroup);
  steps.low = uniform(steps.low), steps.high = uniform(steps.high);
  return steps;
}

// The walk from where `visible_steps` begins, with step `low`.
DEVICE Walk visible_walk(const Space& space, const Tile& tile, int warpgroup, int low) {
  Walk walk;
  if constexpr (WARPGROUPS == 1) {
    walk.start(tile, 0);
  } else if constexpr (BLOCKS == 1 && !ORIGIN) {
    // That is with a plane of blocks, which takes no division by their numbers.
    const int start = window_of<SLOW>(space, tile, tile.row[SLOW] + warpgroup * row_extent(SLOW)).start - tile.column[SLOW];
    walk.at[MIDDLE] = walk.at[FAST] = 0;
    walk.at[SLOW] = uniform(start / column_extent(SLOW));
  } else {
    walk.start(tile, low * BLOCKS);
  }
  return walk;
}

// Rounds of tiles run forwards and backwards in turn, which evens out tiles of falling length. Of each chunk, which divides the workers, a
// worker has the same member in all of them.
DEVICE int tile_index(int round, int worker, int workers, int chunk = 1) {
  return round * workers + (round & 1 ? workers - chunk - worker + 2 * (worker % chunk) : worker);
}
DEVICE int tile_index(int round) { return tile_index(round, blockIdx.x, gridDim.x); }
// A chunk of heads if it divides the workers, so that each can keep to a member of it; or else 1.
DEVICE int kept_chunk(const Space& space, int workers) { return workers % space.chunk ? 1 : space.chunk; }
DEVICE int rounds(int tiles, int workers) { return (tiles + workers - 1) / workers; }
DEVICE int rounds(int tiles) { return rounds(tiles, gridDim.x); }
