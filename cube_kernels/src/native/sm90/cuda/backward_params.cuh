struct Params {
  void *first, *second;          // gradients: of query, or of key and value
  const u16 *query, *key, *value, *dout, *more_key, *more_value;
  const float* statistics;       // of the queries, see delta.cu
  i64 query_strides[5], key_strides[5], value_strides[5], dout_strides[5];  // elements: batch, x, y, z, head
  i64 more_key_strides[3], more_value_strides[3];                           // batch, token, head
  i64 plane;                     // elements from the logsumexp of a query to its delta
  Space space;
  int heads;                     // of the queries
  int group_size;                // query heads to a key head
  int additional;                // tokens that every query sees
  float scale, scale_log2;       // scale * log2(e)
};

// The columns of a key head are the queries of several heads, one after the other.
DEVICE int passes(const Params& params) { return INVERSE ? params.group_size : 1; }
DEVICE int column_head(const Params& params, const Tile& tile, int pass) {
  return INVERSE ? tile.head * params.group_size + pass : tile.head / params.group_size;
}

// Where the logsumexp of the query at a position is in the statistics; the tile's group is the query's.
DEVICE i64 statistic(const Params& params, const Tile& tile, int head, const int (&query)[3]) {
  i64 index = 2 * (tile.batch * params.heads + head);
#pragma unroll
  for (int a = 0; a < 3; a++) index = index * (params.space.axes[a].dilation * params.space.axes[a].pitch) + tile.group[a] * params.space.axes[a].pitch + query[a];
  return index;
}
