// How the rows are cut into tiles, and where a tile lies. Rows are what a CTA keeps, columns what it sweeps over:
// queries and keys, or, with INVERSE, keys and the queries that see them. All positions are those inside a
// dilation group, see window.rs. Axes are z, y, x, the fastest last.
//
// Compile-time parameters: RANK, CAUSAL (bit a: axis a is causal), STRIDED, DILATED, ORIGIN (some axis is
// shifted, see window.cuh), INVERSE, ROW_Z
// ROW_Y ROW_X (the rows of a warpgroup), COLUMN_Z COLUMN_Y COLUMN_X (the columns of a block), STACK
// (the axis along which the tiles of the warpgroups of a CTA are stacked), WARPGROUPS (consumers), BLOCKS (of a step). LISTED: columns are
// those of listed blocks, see listed.cuh, with ROW_H and COLUMN_H heads of a box of rows and of columns. SHARED_ROWS: all warpgroups have the
// same rows, and take steps in turn.

#if !defined LISTED
#define LISTED 0
constexpr int ROW_H = 1, COLUMN_H = 1;
#endif
#if !defined SHARED_ROWS
#define SHARED_ROWS 0
#endif
constexpr int ROW_TILES = SHARED_ROWS ? 1 : WARPGROUPS;  // of a CTA
constexpr int PLACE = LISTED ? 4 : 3;                 // numbers that say where a row is: its position, and its head if tiles have several
constexpr int ROW_BOX = ROW_H * ROW_Z * ROW_Y * ROW_X;  // rows of a box, which fill those of a warpgroup, or all but a few of them

constexpr int FIRST_AXIS = 3 - RANK;
DEVICE constexpr bool is_causal(int a) { return CAUSAL >> a & 1; }

struct AxisParams {
  int queries, keys;     // of the axis
  int kernel, stride;
  int groups;            // dilation groups this launch covers: the dilation, or 1
  int dilation;          // tokens between neighbors of a group
  int residue;           // the group, when `groups` is 1 and the dilation is not
  int tiles;             // CTA tiles of the longest group
  int step;              // TMA coordinate of position p: group + p * step
  int pitch;             // of a group's queries in the statistics, see query_statistics.cuh
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
DEVICE constexpr int cta_extent(int a) { return row_extent(a) * (a == STACK ? ROW_TILES : 1); }
// Whether a CTA has one row along an axis and a block one column: the blocks are all that the row sees, or one if it sees nothing.
DEVICE constexpr bool is_single(int a) { return a >= FIRST_AXIS && row_extent(a) == 1 && column_extent(a) == 1 && STACK != a; }

// Blocks of columns are visited with the stacking axis slowest, so that what a warpgroup sees is one range.
constexpr int SLOW = STACK, MIDDLE = STACK == 0 ? 1 : 0, FAST = STACK == 2 ? 1 : 2;

// What a CTA works on: 64 * ROW_TILES rows of one head and the blocks of columns they see.
struct __align__(128) Tile {
  int batch, head;
  int group[3];                  // dilation group
  int rows[3], columns[3];       // members of the group
  int row[3];                    // position of the first row
  int column[3];                 // position of the first column that one of the rows sees; with SLOPES of its box
  int blocks[3];                 // blocks of columns from there on
  int steps;                     // of BLOCKS blocks; 0 when no row of the tile exists
  int first;                     // number of its first step among all of the CTA
  int sequence;                  // of a packed batch; without it the kernels' loads of a tile are others
#if PACKED
  const struct Sequence* where;  // in memory
#endif
#if ORIGIN
  int shift[3];                  // of the queries along each axis, see window.cuh
#endif
#if LISTED
  int list;                      // number of its list
  int whole;                     // steps without a mask, which come first
#endif
};
static_assert(sizeof(Tile) == 128, "the kernels' shared memory has 128 bytes for it");

// The columns that the row at a position sees along an axis.
template <int A> DEVICE Window window_of(const Space& space, int shift, const Tile& tile, int row) {
  const AxisParams& axis = space.axes[A];
  const int rows = tile.rows[A], columns = tile.columns[A];
  if constexpr (INVERSE) return window_of_key<is_causal(A), STRIDED, ORIGIN>(axis, shift, row, rows, columns);
  else return window_of_query<is_causal(A), STRIDED, ORIGIN>(axis, shift, row, rows, columns);
}

template <int A> DEVICE Window window_of(const Space& space, const Tile& tile, int row) {
#if ORIGIN
  const int shift = tile.shift[A];
#else
  const int shift = 0;
#endif
  return window_of<A>(space, shift, tile, row);
}

template <int A> DEVICE void locate(const Space& space, int shift, Tile& tile, int index, int group) {
  if (A < FIRST_AXIS) {
    tile.group[A] = tile.row[A] = tile.column[A] = 0;
    tile.rows[A] = tile.columns[A] = tile.blocks[A] = 1;
    return;
  }
  const AxisParams& axis = space.axes[A];
  int queries = opaque(axis.queries), keys = opaque(axis.keys);
  if constexpr (DILATED) {
    const int g = axis.groups == 1 ? axis.residue : group;
    queries = (queries - g + axis.dilation - 1) / axis.dilation;
    keys = (keys - g + axis.dilation - 1) / axis.dilation;
    tile.group[A] = g;
  } else {
    tile.group[A] = 0;
  }
  tile.rows[A] = INVERSE ? keys : queries;
  tile.columns[A] = INVERSE ? queries : keys;
  tile.row[A] = index * cta_extent(A);
  tile.column[A] = window_of<A>(space, shift, tile, tile.row[A]).start;
#if SLOPES
  tile.column[A] = tile.column[A] / column_extent(A) * column_extent(A);
#endif
  const int end = window_of<A>(space, shift, tile, tile.row[A] + cta_extent(A) - 1).end;
  // Rows that see nothing still have results.
  tile.blocks[A] = max_(1, (end - tile.column[A] + column_extent(A) - 1) / column_extent(A));
  if (tile.row[A] >= tile.rows[A]) tile.blocks[A] = 0;
}

// Takes the tile along an axis out of an index.
template <int A> DEVICE int take_tile(const Space& space, int& index) {
  if (A < FIRST_AXIS) return 0;
  const int at = index % space.axes[A].tiles;
  index /= space.axes[A].tiles;
  return is_causal(A) && !INVERSE ? space.axes[A].tiles - 1 - at : at;
}

// Whether the row at a position sees no column, but for additional ones.
DEVICE bool is_blind(const Space& space, const Tile& tile, const int (&at)[PLACE]) {
  if constexpr (!ORIGIN) return false;
  const Window z = window_of<0>(space, tile, at[0]), y = window_of<1>(space, tile, at[1]), x = window_of<2>(space, tile, at[2]);
  return z.start >= z.end || y.start >= y.end || x.start >= x.end;
}

// Finds the tile of an index. From fast to slow: head within its chunk, the fast, middle and slow axis, the
// dilation group, the chunk. Along a causal axis the rows that see most come first, which are the last
// queries or the first keys: the tiles that are left for the end of the launch are short ones.
// Where `samples` are given, those of a chunk of heads follow each other, instead of the heads of a sample; or, where a kernel sums the
// gradient of a bias, those of a head that lie alike, which are the chunk then.
DEVICE void decode_tile(const Space& space, const int (&shift)[3], int samples, int index, Tile& tile) {
  int at[3], group[3] = {0, 0, 0};
  const int member = index % space.chunk;
  index /= space.chunk;
  at[FAST] = take_tile<FAST>(space, index);
  at[MIDDLE] = take_tile<MIDDLE>(space, index);
  at[SLOW] = take_tile<SLOW>(space, index);
  if constexpr (DILATED) {
#pragma unroll
    for (int a = 2; a >= FIRST_AXIS; a--) {
      group[a] = index % space.axes[a].groups;
      index /= space.axes[a].groups;
    }
  }
  const int pair = index * space.chunk + member;
  if (samples) {
#if SUM_BIAS
    tile.head = index;
    tile.batch = member;
#else
    tile.head = index / samples * space.chunk + member;
    tile.batch = index % samples;
#endif
  } else {
    tile.head = pair % space.heads;
    tile.batch = pair / space.heads;
  }
  // The producer has few registers: where the tile is in shared memory, an axis is written before the next.
  locate<0>(space, shift[0], tile, at[0], group[0]);
  memory_barrier();
  locate<1>(space, shift[1], tile, at[1], group[1]);
  memory_barrier();
  locate<2>(space, shift[2], tile, at[2], group[2]);
  memory_barrier();
#if ORIGIN
#pragma unroll
  for (int a = 0; a < 3; a++) tile.shift[a] = shift[a];
#endif
  const int blocks = tile.blocks[0] * tile.blocks[1] * tile.blocks[2];
  tile.steps = (blocks + BLOCKS - 1) / BLOCKS;
}

// Whether the row at a position sees the column at another.
DEVICE bool is_visible(const Space& space, const Tile& tile, const int (&row)[PLACE], const int (&column)[3]) {
  const Window z = FIRST_AXIS == 0 ? window_of<0>(space, tile, row[0]) : Window{0, 1};
  const Window y = FIRST_AXIS <= 1 ? window_of<1>(space, tile, row[1]) : Window{0, 1};
  const Window x = window_of<2>(space, tile, row[2]);
  return column[0] >= z.start && column[0] < z.end && column[1] >= y.start && column[1] < y.end && column[2] >= x.start && column[2] < x.end;
}

// Coordinates that TMA takes, from positions.
DEVICE int coordinate(const Space& space, const Tile& tile, int a, int position) {
  if constexpr (!DILATED) return position;
  const AxisParams& axis = space.axes[a];
  return position * axis.step + (axis.groups == 1 ? 0 : tile.group[a]);
}
// Tokens, for addresses.
DEVICE int token(const Space& space, const Tile& tile, int a, int position) {
  return DILATED ? position * space.axes[a].dilation + tile.group[a] : position;
}

// Where the rows of a warpgroup begin, as TMA takes it.
DEVICE void row_box(const Space& space, const Tile& tile, int warpgroup, int (&at)[3]) {
#pragma unroll
  for (int a = 0; a < 3; a++)
    at[a] = coordinate(space, tile, a, tile.row[a] + (a == STACK ? warpgroup * row_extent(a) : 0));
  at[0] += tile.batch * space.batch_step;
}

// The head of a row.
DEVICE int head_of(const Tile& tile, const int (&at)[PLACE]) { return LISTED ? at[PLACE - 1] : tile.head; }

// The place of a row among all rows of the tensor, `[batch, tokens.., heads]`. Tokens are fewer than 2^31.
DEVICE i64 row_index(const Space& space, const Tile& tile, const int (&at)[PLACE]) {
  u32 index = tile.batch;
#pragma unroll
  for (int a = FIRST_AXIS; a < 3; a++)
    index = index * (INVERSE ? space.axes[a].keys : space.axes[a].queries) + token(space, tile, a, at[a]);
  return (i64)((u64)index * (u32)space.heads + head_of(tile, at));
}
DEVICE bool row_exists(const Tile& tile, const int (&at)[PLACE]) {
  bool exists = !LISTED || at[PLACE - 1] < tile.head + ROW_H;
#pragma unroll
  for (int a = FIRST_AXIS; a < 3; a++) exists = exists && at[a] < tile.rows[a];
  return exists;
}
