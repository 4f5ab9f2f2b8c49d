// Which keys a query sees, and how the queries are cut into tiles. All positions are those inside a
// dilation group; see window.rs for the semantics.
//
// Compile-time parameters: RANK, CAUSAL (bit a: axis a is causal), STRIDED, DILATED, QX QY QZ (the 64
// queries of a warpgroup), KX KY KZ (the 64 keys of a block), STACK (the axis along which the tiles of
// the warpgroups of a CTA are stacked), WARPGROUPS (consumers).

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
  int tiles;             // query tiles of the longest group
  int step;              // TMA coordinate of position p: group + p * step
};

struct Params {
  void* out;
  float* lse;
  const u16 *query, *key, *value, *more_key, *more_value;
  i64 query_strides[5], key_strides[5], value_strides[5];  // elements: batch, x, y, z, head
  i64 more_key_strides[3], more_value_strides[3];          // batch, token, head
  AxisParams axes[3];
  int batch, heads, group_size;    // query heads to a key head
  int chunk;                     // (sample, head) pairs that advance together through space
  int tiles;                     // CTA tiles of the launch
  int additional;                // tokens that every query sees
  float scale_log2;              // scale * log2(e)
  int batch_step;                // TMA coordinate of a sample's origin along x
};

DEVICE constexpr int q_extent(int a) { return a == 0 ? QX : a == 1 ? QY : QZ; }
DEVICE constexpr int k_extent(int a) { return a == 0 ? KX : a == 1 ? KY : KZ; }
DEVICE constexpr int cta_extent(int a) { return q_extent(a) * (a == STACK ? WARPGROUPS : 1); }

// Key blocks are visited with the stacking axis slowest, so that what a warpgroup sees is one range.
#define SLOW STACK
#define MIDDLE (STACK == 0 ? 1 : 0)
#define FAST (STACK == 2 ? 1 : 2)

struct Window { int start, end; };

// The window of the query at position `q`, which is clamped into its group.
template <int A> DEVICE Window window(const AxisParams& axis, int q, int queries, int keys) {
  q = min_(q, queries - 1);
#if STRIDED
  const int first = q / axis.stride * axis.stride;
#else
  const int first = q;
#endif
  Window w;
  if (IS_CAUSAL(A)) {
    const int leader = min_(first + axis.stride - 1, keys - 1);
    w.start = max_(leader - axis.kernel + 1, 0);
    w.end = min_(q + 1, keys);
  } else {
    const int leader = min_(first + axis.stride / 2, keys - 1);
    w.start = min_(max_(leader - axis.kernel / 2, 0), keys - axis.kernel);
    w.end = w.start + axis.kernel;
  }
  return w;
}

// What a CTA works on: 64 * WARPGROUPS queries of one head and the blocks of keys they see.
struct __align__(16) Tile {
  int batch, head;
  int group[3];            // dilation group
  int queries[3], keys[3]; // members of the group
  int query[3];            // position of the first query
  int key[3];              // position of the first key that one of the queries sees
  int blocks[3];           // key blocks from there on
  int steps;               // of BLOCKS key blocks; 0 when no query of the tile exists
};
static_assert(sizeof(Tile) <= 128, "the kernel's shared memory has 128 bytes for it");

template <int A> DEVICE void locate(const Params& params, Tile& tile, int index, int group) {
  if (A < FIRST_AXIS) {
    tile.group[A] = tile.query[A] = tile.key[A] = 0;
    tile.queries[A] = tile.keys[A] = tile.blocks[A] = 1;
    return;
  }
  const AxisParams& axis = params.axes[A];
#if DILATED
  const int g = axis.groups == 1 ? axis.residue : group;
  tile.group[A] = g;
  tile.queries[A] = (axis.queries - g + axis.dilation - 1) / axis.dilation;
  tile.keys[A] = (axis.keys - g + axis.dilation - 1) / axis.dilation;
#else
  tile.group[A] = 0;
  tile.queries[A] = axis.queries;
  tile.keys[A] = axis.keys;
#endif
  tile.query[A] = index * cta_extent(A);
  tile.key[A] = window<A>(axis, tile.query[A], tile.queries[A], tile.keys[A]).start;
  const int end = window<A>(axis, tile.query[A] + cta_extent(A) - 1, tile.queries[A], tile.keys[A]).end;
  tile.blocks[A] = (end - tile.key[A] + k_extent(A) - 1) / k_extent(A);
  if (tile.query[A] >= tile.queries[A]) tile.blocks[A] = 0;
}

// The tile of an index. From fast to slow: head within its chunk, the fast, middle and slow axis, the
// dilation group, the chunk. Along a causal axis the last queries, which see most, come first: the tiles
// that are left for the end of the launch are short ones.
DEVICE Tile tile_of(const Params& params, int index) {
  Tile tile;
  int at[3] = {0, 0, 0}, group[3] = {0, 0, 0};
  const int member = index % params.chunk;
  index /= params.chunk;
#define TAKE(A)                                                       \
  if (A >= FIRST_AXIS) {                                              \
    at[A] = index % params.axes[A].tiles;                             \
    index /= params.axes[A].tiles;                                    \
    if (IS_CAUSAL(A)) at[A] = params.axes[A].tiles - 1 - at[A];       \
  }
  TAKE(FAST) TAKE(MIDDLE) TAKE(SLOW)
#undef TAKE
#if DILATED
#pragma unroll
  for (int a = 2; a >= FIRST_AXIS; a--) {
    group[a] = index % params.axes[a].groups;
    index /= params.axes[a].groups;
  }
#endif
  const int pair = index * params.chunk + member;
  tile.head = pair % params.heads;
  tile.batch = pair / params.heads;
  locate<0>(params, tile, at[0], group[0]);
  locate<1>(params, tile, at[1], group[1]);
  locate<2>(params, tile, at[2], group[2]);
  const int blocks = tile.blocks[0] * tile.blocks[1] * tile.blocks[2];
  tile.steps = (blocks + BLOCKS - 1) / BLOCKS;
  return tile;
}

// Walks over the key blocks of a tile.
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
DEVICE int coordinate(const Params& params, const Tile& tile, int a, int position) {
#if DILATED
  const AxisParams& axis = params.axes[a];
  return position * axis.step + (axis.groups == 1 ? 0 : tile.group[a]);
#else
  return position;
#endif
}
// Tokens, for addresses.
DEVICE int token(const Params& params, const Tile& tile, int a, int position) {
#if DILATED
  return position * params.axes[a].dilation + tile.group[a];
#else
  return position;
#endif
}
