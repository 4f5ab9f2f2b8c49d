// SPLITS: CTAs that share the heads of a key head's group, each with rows of its own. What they sum is added up by another kernel, see
// splits.cu.
#if !defined SPLITS
#define SPLITS 1
#endif

constexpr int COUNTERS = 32;     // of a launch, as in grid.rs

struct Params {
  void *first, *second;          // gradients: of query, or of key and value; or sums [batch, keys, heads, SPLITS, dim], of the elements that this kernel has
  const u16 *query, *key, *value, *dout, *more_key, *more_value;
  float4* statistics;            // of the queries, see query_statistics.cuh
  int* taken;                    // tiles that this launch has handed out, beyond the first of each CTA: COUNTERS, of members of a chunk
  i64 query_strides[5], key_strides[5], value_strides[5], dout_strides[5];  // elements: batch, z, y, x, head
  i64 more_key_strides[3], more_value_strides[3];                           // batch, token, head
  Space space;
  int heads;                     // of the queries
  int group_size;                // query heads to a key head, or to one of its SPLITS
  int additional;                // tokens that every query sees
  float scale, scale_log2;       // scale * log2(e)
  int shift[3];                  // of the queries along each axis, see window.cuh; with ORIGIN
  Bias bias;
#if LISTED
  Listed listed;
#endif
#if SLOPES
  Slopes slopes;
#endif
};

struct Maps {
  // The last one is of the output where a kernel for queries makes their statistics itself.
  const TensorMap *row_first, *row_second, *column_first, *column_second, *more_key, *more_value, *statistics;
  static constexpr int COUNT = 7;
  // Without additional tokens.
  DEVICE static constexpr bool is_used(int i) { return i < 4 || (INVERSE && i == 6); }
  DEVICE static Maps at(const TensorMap* first) { return {first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6}; }
};

// Tiles of CTAs ahead of those of the launch.
DEVICE int first_tile(const Params& params) {
#if SLOPES
  return params.slopes.first_tile;
#else
  return 0;
#endif
}

#if SPLITS > 1
typedef float Gradient;
#else
typedef u16 Gradient;
#endif
// Where a row of the first one begins.
DEVICE Gradient* first_gradient(const Params& params, i64 row) {
  return (Gradient*)params.first + (SPLITS > 1 ? row * FIRST_DIM : row * DIM + FIRST_START);
}
DEVICE void set_gradient(float* to, float value) { *to = value; }
DEVICE void set_gradient(u16* to, float value) { *to = (u16)pack(value, 0.f); }

// The head of a tensor that has the rows of a tile's head.
DEVICE int row_head(int head) { return head / SPLITS; }

// The columns of a key head are the queries of several heads, one after the other.
DEVICE int passes(const Params& params) { return INVERSE ? params.group_size / COLUMN_H : 1; }
DEVICE int column_head(const Params& params, const Tile& tile, int pass) {
  return INVERSE ? tile.head * params.group_size + pass * COLUMN_H : tile.head / params.group_size;
}

DEVICE int query_head(const Params& params, const Tile& tile, int pass) {
  return INVERSE ? column_head(params, tile, pass) : tile.head;
}

// The statistics of the query at a position; the tile's group is the query's.
template <int N> DEVICE float4& statistics_of(const Params& params, const Tile& tile, int head, const int (&query)[N]) {
  i64 index = tile.batch * params.heads + head;
#pragma unroll
  for (int a = 0; a < 3; a++) {
    const AxisParams& axis = params.space.axes[a];
    index = index * (axis.dilation * axis.pitch) + tile.group[a] * axis.pitch + query[a];
  }
  return params.statistics[index];
}
