// Rows of gradients that became infinite or NaN are computed again, one warp to a row, from exactly the
// pairs that see each other. The fast path also multiplies others, with weight zero: an infinity there gives
// NaN, and so do the statistics of queries whose scores may have come through the mask, see query_statistics.cuh. Such rows are rare; when a model has diverged and every row is NaN, the pass is some hundred times slower.

DEVICE i64 offset(const i64 (&strides)[5], int batch, const int (&token)[3], int head) {
  return batch * strides[0] + token[0] * strides[1] + token[1] * strides[2] + token[2] * strides[3] + head * strides[4];
}

// dS of a query and a key that it sees.
DEVICE float slope_of(const Params& params, const Tile& tile, const int (&query)[PLACE], const int (&key)[3], int lane) {
  const Space& space = params.space;
  const int here[3] = {token(space, tile, 0, query[0]), token(space, tile, 1, query[1]), token(space, tile, 2, query[2])};
  const int there[3] = {token(space, tile, 0, key[0]), token(space, tile, 1, key[1]), token(space, tile, 2, key[2])};
  const int head = column_head(params, tile, 0);
  Row row, column;
  load_row(row, params.query + offset(params.query_strides, tile.batch, here, tile.head),
           params.dout + offset(params.dout_strides, tile.batch, here, tile.head), lane);
  load_row(column, params.key + offset(params.key_strides, tile.batch, there, head),
           params.value + offset(params.value_strides, tile.batch, there, head), lane);
  const float4 statistics = statistics_of(params, tile, tile.head, query);
  const float bias = BIAS ? bias_of(params.bias, tile.head, query, key) : 0.f;
  float score, product;
  dots(row, column, score, product);
  return exp2f(score * params.scale_log2 - (statistics.x - bias * LOG2_E)) * (product - statistics.y);
}

// The row at position `at`.
DEVICE void repair_row(const Params& params, const Tile& tile, const int (&at)[PLACE], int lane) {
  const Space& space = params.space;
  const i64 place = row_index(space, tile, at);
  int here[3];
#pragma unroll
  for (int a = 0; a < 3; a++) here[a] = token(space, tile, a, at[a]);
  Row row, sum;
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++) sum.values[i] = 0.f;
#pragma unroll
  for (int i = 0; i < (DIM_V + 31) / 32; i++) sum.values_v[i] = 0.f;
  const u16* first = INVERSE ? params.key : params.query;
  const u16* second = INVERSE ? params.value : params.dout;
  load_row(row, first + offset(INVERSE ? params.key_strides : params.query_strides, tile.batch, here, row_head(head_of(tile, at))),
           second + offset(INVERSE ? params.value_strides : params.dout_strides, tile.batch, here, row_head(head_of(tile, at))), lane);
#if LISTED
  const Listed& listed = params.listed;
#pragma unroll 1
  for (int pass = 0; pass < passes(params); pass++) {
    const uint4 entry = list_of(listed, tile.list, pass);
#pragma unroll 1
    for (int i = 0; i < entry.y * BOXES; i++) {
      const Item item(listed.items[entry.x + i]);
      const Seen seen(listed, tile, at, item);
#pragma unroll 1
      for (int n = 0; n < BLOCK; n++) {
        const int z = n / (COLUMN_Y * COLUMN_X) % COLUMN_Z, y = n / COLUMN_X % COLUMN_Y, x = n % COLUMN_X;
        if (!seen.has(z, y, x)) continue;
        const int there[3] = {item.at[0] + z, item.at[1] + y, item.at[2] + x};
        const int head = column_head(params, tile, pass) + n / (COLUMN_Z * COLUMN_Y * COLUMN_X);
        const float4 statistics = INVERSE ? statistics_of(params, tile, head, there) : statistics_of(params, tile, head_of(tile, at), at);
        see(sum, row,
            (INVERSE ? params.query : params.key) + offset(INVERSE ? params.query_strides : params.key_strides, tile.batch, there, head),
            (INVERSE ? params.dout : params.value) + offset(INVERSE ? params.dout_strides : params.value_strides, tile.batch, there, head),
            statistics.x, statistics.y, params.scale_log2, 0.f, lane);
      }
    }
  }
#else
  const Window wz = RANK == 3 ? window_of<0>(space, tile, at[0]) : Window{0, 1};
  const Window wy = RANK >= 2 ? window_of<1>(space, tile, at[1]) : Window{0, 1};
  const Window wx = window_of<2>(space, tile, at[2]);
#pragma unroll 1
  for (int pass = 0; pass < passes(params); pass++) {
    const int head = column_head(params, tile, pass);
#pragma unroll 1
    for (int z = wz.start; z < wz.end; z++)
#pragma unroll 1
      for (int y = wy.start; y < wy.end; y++)
#pragma unroll 1
        for (int x = wx.start; x < wx.end; x++) {
          const int there[3] = {token(space, tile, 0, z), token(space, tile, 1, y), token(space, tile, 2, x)};
          const int seen[3] = {z, y, x};
          const float4 statistics = INVERSE ? statistics_of(params, tile, head, seen) : statistics_of(params, tile, tile.head, at);
          const float bias = BIAS ? bias_of(params.bias, INVERSE ? head : tile.head, at, seen) : 0.f;
          see(sum, row,
              (INVERSE ? params.query : params.key) + offset(INVERSE ? params.query_strides : params.key_strides, tile.batch, there, head),
              (INVERSE ? params.dout : params.value) + offset(INVERSE ? params.dout_strides : params.value_strides, tile.batch, there, head),
              statistics.x, statistics.y, params.scale_log2, bias, lane);
        }
  }
#endif
#pragma unroll 1
  for (int t = 0; ADDITIONAL && t < params.additional; t++) {
    const int head = column_head(params, tile, 0);
    const float4 statistics = statistics_of(params, tile, tile.head, at);
    see(sum, row,
        params.more_key + tile.batch * params.more_key_strides[0] + t * params.more_key_strides[1] + head * params.more_key_strides[2],
        params.more_value + tile.batch * params.more_value_strides[0] + t * params.more_value_strides[1] + head * params.more_value_strides[2],
        statistics.x, statistics.y, params.scale_log2, 0.f, lane);
  }
#pragma unroll
  for (int i = FIRST_START / 32; WITH_FIRST && i < (FIRST_START + FIRST_DIM + 31) / 32; i++)
    if (i * 32 + lane < FIRST_START + FIRST_DIM) set_gradient(first_gradient(params, place) + i * 32 + lane - FIRST_START, sum.values[i] * params.scale);
#pragma unroll
  for (int i = 0; WITH_SECOND && i < (DIM_V + 31) / 32; i++)
    if (i * 32 + lane < DIM_V) set_gradient((Gradient*)params.second + place * DIM_V + i * 32 + lane, sum.values_v[i]);
}
