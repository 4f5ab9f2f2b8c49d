// Rows that the fast path cannot be trusted with are computed again, one warp to a row, over exactly the
// keys of their windows. The fast path also multiplies what a row does not see, with weight zero: an
// infinity there gives NaN, and scores beyond 2^24 may have come through the mask. Such rows are rare;
// when a model has diverged and every row is NaN, the pass is some hundred times slower.

DEVICE i64 offset(const i64 (&strides)[5], int batch, int z, int y, int x, int head) {
  return batch * strides[0] + z * strides[1] + y * strides[2] + x * strides[3] + head * strides[4];
}

// The row of the query at `at`.
DEVICE void repair_row(const Params& params, const Tile& tile, const int (&at)[PLACE], int lane) {
  const Space& space = params.space;
  const i64 row = row_index(space, tile, at);
  const int head = head_of(tile, at), head_kv = head / params.group_size;
  const u16* query = params.query + offset(params.query_strides, tile.batch, token(space, tile, 0, at[0]),
                                           token(space, tile, 1, at[1]), token(space, tile, 2, at[2]), head);
  float q[(DIM + 31) / 32];
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++) q[i] = i * 32 + lane < DIM ? unpack(query[i * 32 + lane]) : 0.f;
  Accumulator sum = {NEG_INF, 0.f, {}};
#if LISTED
  const Listed& listed = params.listed;
  const u64* items = listed.items + listed.table[tile.list].x;
#pragma unroll 1
  for (int i = 0; i < tile.steps * BOXES; i++) {
    const Item item(items[i]);
    const Seen seen(listed, tile, at, item);
#pragma unroll 1
    for (int n = 0; n < BLOCK; n++) {
      const int z = n / (COLUMN_Y * COLUMN_X), y = n / COLUMN_X % COLUMN_Y, x = n % COLUMN_X;
      if (!seen.has(z, y, x)) continue;
      const int there[3] = {item.at[0] + z, item.at[1] + y, item.at[2] + x};
      see(sum, q, params.key + offset(params.key_strides, tile.batch, there[0], there[1], there[2], head_kv),
          params.value + offset(params.value_strides, tile.batch, there[0], there[1], there[2], head_kv), params.scale_log2, 0.f, lane);
    }
  }
#else
  const Window wz = RANK == 3 ? window_of<0>(space, tile, at[0]) : Window{0, 1};
  const Window wy = RANK >= 2 ? window_of<1>(space, tile, at[1]) : Window{0, 1};
  const Window wx = window_of<2>(space, tile, at[2]);
#pragma unroll 1
  for (int z = wz.start; z < wz.end; z++)
#pragma unroll 1
    for (int y = wy.start; y < wy.end; y++)
#pragma unroll 1
      for (int x = wx.start; x < wx.end; x++) {
        const int tz = token(space, tile, 0, z), ty = token(space, tile, 1, y), tx = token(space, tile, 2, x);
        const int there[3] = {z, y, x};
        const float bias = BIAS ? bias_of(params.bias, tile.head, at, there) : 0.f;
        see(sum, q, params.key + offset(params.key_strides, tile.batch, tz, ty, tx, head_kv),
            params.value + offset(params.value_strides, tile.batch, tz, ty, tx, head_kv), params.scale_log2, bias, lane);
      }
#endif
#pragma unroll 1
  for (int t = 0; ADDITIONAL && t < params.additional; t++)
    see(sum, q,
        params.more_key + tile.batch * params.more_key_strides[0] + t * params.more_key_strides[1] + head_kv * params.more_key_strides[2],
        params.more_value + tile.batch * params.more_value_strides[0] + t * params.more_value_strides[1] + head_kv * params.more_value_strides[2],
        params.scale_log2, 0.f, lane);
  const float inverse = 1.f / sum.sum;
  u16* out = (u16*)params.out + row * DIM_V;
#pragma unroll
  for (int i = 0; i < (DIM_V + 31) / 32; i++)
    if (i * 32 + lane < DIM_V) out[i * 32 + lane] = (u16)pack(sum.out[i] * inverse, 0.f);
  if (lane == 0) params.lse[row] = (sum.max + log2f(sum.sum)) * LN_2;
}
