// Which columns a row of scores sees, and how the rows are cut into tiles. Rows are what a CTA keeps,
// columns what it sweeps over: queries and keys, or, with INVERSE, keys and the queries that see them.
// All positions are those inside a dilation group; see window.rs for the semantics.
//
// Compile-time parameters: RANK, CAUSAL (bit a: axis a is causal), STRIDED, DILATED, INVERSE, ROW_Z
// ROW_Y ROW_X (the 64 rows of a warpgroup), COLUMN_Z COLUMN_Y COLUMN_X (the 64 columns of a block), STACK
// (the axis along which the tiles of the warpgroups of a CTA are stacked), WARPGROUPS (consumers).

// Values of MASK, see mask.cuh.
#define NONE 0
#define LINEAR 1
#define ONE_HOT 2

#define FIRST_AXIS (3 - RANK)
#define IS_CAUSAL(a) (((CAUSAL) >> (a)) & 1)

struct AxisParams {
  int queries, keys;     // of the axis
  int kernel, stride;
  int groups;            // dilation groups this launch covers: the dilation, or 1
  int dilation;          // tokens between neighbors of a group
  int residue;           // the group, when `groups` is 1 and the dilation is not
  int tiles;             // CTA tiles of the longest group
  int step;              // TMA coordinate of position p: group + p * step
  int pitch;             // of a group's queries in the statistics, see delta.cu
};

struct Space {
  AxisParams axes[3];
  int heads;             // of the rows
  int chunk;             // (sample, head) pairs that advance together through space
  int tiles;             // CTA tiles of the launch
  int batch_step;        // TMA coordinate of a sample's origin along z
};

DEVICE constexpr int row_extent(int a) { return a == 0 ? ROW_Z : a == 1 ? ROW_Y : ROW_X; }
DEVICE constexpr int column_extent(int a) { return a == 0 ? COLUMN_Z : a == 1 ? COLUMN_Y : COLUMN_X; }
DEVICE constexpr int cta_extent(int a) { return row_extent(a) * (a == STACK ? WARPGROUPS : 1); }

// Blocks of columns are visited with the stacking axis slowest, so that what a warpgroup sees is one range.
#define SLOW STACK
#define MIDDLE (STACK == 0 ? 1 : 0)
#define FAST (STACK == 2 ? 1 : 2)

struct Window { int start, end; };

#if INVERSE
// First position of the first stride group whose leader, `offset` behind its first member, is at `leader`
// or later.
DEVICE int first_with_leader(const AxisParams& axis, int leader, int offset) {
  leader = max_(leader - offset, 0);
#if STRIDED
  return (leader + axis.stride - 1) / axis.stride * axis.stride;
#else
  return leader;
#endif
}

// The queries that see the key at position `row`, which is clamped into its group. Empty where the end
// is not behind the start: of causal attention with fewer queries than keys nobody sees the last keys.
template <int A> DEVICE Window window(const AxisParams& axis, int row, int keys, int queries) {
  row = min_(row, keys - 1);
  const int behind = axis.kernel / 2, half = axis.stride / 2;
  Window w = {0, queries};
  if (IS_CAUSAL(A)) {
    w.start = row;
    if (row + axis.kernel < keys) w.end = first_with_leader(axis, row + axis.kernel, axis.stride - 1);
  } else {
    if (row >= axis.kernel) w.start = first_with_leader(axis, row + 1 - axis.kernel + behind, half);
    if (row + axis.kernel < keys) w.end = first_with_leader(axis, row + 1 + behind, half);
  }
  w.start = min_(w.start, queries);
  w.end = min_(w.end, queries);
  return w;
}
#else
// The keys that the query at position `row` sees, which is clamped into its group.
template <int A> DEVICE Window window(const AxisParams& axis, int row, int queries, int keys) {
  row = min_(row, queries - 1);
#if STRIDED
  const int first = row / axis.stride * axis.stride;
#else
  const int first = row;
#endif
  Window w;
  if (IS_CAUSAL(A)) {
    const int leader = min_(first + axis.stride - 1, keys - 1);
    w.start = max_(leader - axis.kernel + 1, 0);
    w.end = min_(row + 1, keys);
  } else {
    const int leader = min_(first + axis.stride / 2, keys - 1);
    w.start = min_(max_(leader - axis.kernel / 2, 0), keys - axis.kernel);
    w.end = w.start + axis.kernel;
  }
  return w;
}
#endif

// What a CTA works on: 64 * WARPGROUPS rows of one head and the blocks of columns they see.
struct __align__(128) Tile {
  int batch, head;
  int group[3];                  // dilation group
  int rows[3], columns[3];       // members of the group
  int row[3];                    // position of the first row
  int column[3];                 // position of the first column that one of the rows sees
  int blocks[3];                 // blocks of columns from there on
  int steps;                     // of BLOCKS blocks; 0 when no row of the tile exists
  int first;                     // number of its first step among all of the CTA
};
static_assert(sizeof(Tile) == 128, "the kernels' shared memory has 128 bytes for it");

template <int A> DEVICE Window window_of(const Space& space, const Tile& tile, int row) {
  return window<A>(space.axes[A], row, tile.rows[A], tile.columns[A]);
}

template <int A> DEVICE void locate(const Space& space, Tile& tile, int index, int group) {
  if (A < FIRST_AXIS) {
    tile.group[A] = tile.row[A] = tile.column[A] = 0;
    tile.rows[A] = tile.columns[A] = tile.blocks[A] = 1;
    return;
  }
  const AxisParams& axis = space.axes[A];
  int queries = opaque(axis.queries), keys = opaque(axis.keys);
#if DILATED
  const int g = axis.groups == 1 ? axis.residue : group;
  queries = (queries - g + axis.dilation - 1) / axis.dilation;
  keys = (keys - g + axis.dilation - 1) / axis.dilation;
  tile.group[A] = g;
#else
  tile.group[A] = 0;
#endif
  tile.rows[A] = INVERSE ? keys : queries;
  tile.columns[A] = INVERSE ? queries : keys;
  tile.row[A] = index * cta_extent(A);
  tile.column[A] = window_of<A>(space, tile, tile.row[A]).start;
  const int end = window_of<A>(space, tile, tile.row[A] + cta_extent(A) - 1).end;
  // Rows that see nothing still have results.
  tile.blocks[A] = max_(1, (end - tile.column[A] + column_extent(A) - 1) / column_extent(A));
  if (tile.row[A] >= tile.rows[A]) tile.blocks[A] = 0;
}

// Finds the tile of an index. From fast to slow: head within its chunk, the fast, middle and slow axis, the
// dilation group, the chunk. Along a causal axis the rows that see most come first, which are the last
// queries or the first keys: the tiles that are left for the end of the launch are short ones.
DEVICE void decode_tile(const Space& space, int index, Tile& tile) {
  int at[3] = {0, 0, 0}, group[3] = {0, 0, 0};
  const int member = index % space.chunk;
  index /= space.chunk;
#define TAKE(A)                                                                  \
  if (A >= FIRST_AXIS) {                                                         \
    at[A] = index % space.axes[A].tiles;                                         \
    index /= space.axes[A].tiles;                                                \
    if (IS_CAUSAL(A) && !INVERSE) at[A] = space.axes[A].tiles - 1 - at[A];       \
  }
  TAKE(FAST) TAKE(MIDDLE) TAKE(SLOW)
#undef TAKE
#if DILATED
#pragma unroll
  for (int a = 2; a >= FIRST_AXIS; a--) {
    group[a] = index % space.axes[a].groups;
    index /= space.axes[a].groups;
  }
#endif
  const int pair = index * space.chunk + member;
  tile.head = pair % space.heads;
  tile.batch = pair / space.heads;
  // The producer has few registers: where the tile is in shared memory, an axis is written before the next.
  locate<0>(space, tile, at[0], group[0]);
  memory_barrier();
  locate<1>(space, tile, at[1], group[1]);
  memory_barrier();
  locate<2>(space, tile, at[2], group[2]);
  memory_barrier();
  const int blocks = tile.blocks[0] * tile.blocks[1] * tile.blocks[2];
  tile.steps = (blocks + BLOCKS - 1) / BLOCKS;
}

// Walks over the blocks of a tile.
struct Walk {
  int at[3];
  DEVICE void start(const Tile& tile, int block) {
    at[FAST] = block % tile.blocks[FAST];
    block /= tile.blocks[FAST];
    at[MIDDLE] = block % tile.blocks[MIDDLE];
    at[SLOW] = block / tile.blocks[MIDDLE];
  }
  // Behind the last block the slow axis runs on: such a block lies outside every window.
  DEVICE void next(const Tile& tile) {
    if (++at[FAST] == tile.blocks[FAST]) {
      at[FAST] = 0;
      if (++at[MIDDLE] == tile.blocks[MIDDLE]) { at[MIDDLE] = 0; at[SLOW]++; }
    }
  }
};

// Coordinates that TMA takes, from positions.
DEVICE int coordinate(const Space& space, const Tile& tile, int a, int position) {
#if DILATED
  const AxisParams& axis = space.axes[a];
  return position * axis.step + (axis.groups == 1 ? 0 : tile.group[a]);
#else
  return position;
#endif
}
// Tokens, for addresses.
DEVICE int token(const Space& space, const Tile& tile, int a, int position) {
#if DILATED
  return position * space.axes[a].dilation + tile.group[a];
#else
  return position;
#endif
}
