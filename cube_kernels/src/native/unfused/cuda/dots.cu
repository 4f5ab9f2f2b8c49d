// weights[q, s] = scale * rows[q] . token(q, s) + bias, and `hidden` in slots without a token.
//
// A warp multiplies its 16 queries by all tokens of their halo, and of each product leaves those that are in a query's window in the
// slots of shared memory, from which whole lines are written. Compile-time parameters besides: HAS_BIAS. Shared memory: the halo's tokens, and
// weights of the tile, `[TILE_Y, TILE_X, HEADS, SLOTS]`.

constexpr int STAGE = HEADS * HALO_Y * HALO_X * PITCH;

DEVICE u16 half_of(u32 pair, int which) { return (u16)(which ? pair >> 16 : pair & 0xffff); }

// The products of one part, into the slots of one position along the slowest axis; `bias` is the bias of the part's head there.
DEVICE void multiply(const Params& params, const Tile& tile, const Halo& halo, u16* stage, int h, int y, int x, const u16* bias) {
  const int lane = threadIdx.x % 32, pair = 2 * (lane % 4);
  const int from_y = window<CAUSAL_Y>(params.axes[1], tile.y.first + y, tile.y.length).start;
  const int from_x = window<CAUSAL_X>(params.axes[2], tile.x.first + x, tile.x.length).start;

  u32 a[DIM / 16][4];
  Row rows[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    rows[i] = row_of<true>(params, tile, lane / 4 + 8 * i, y, x, from_y, from_x);
    const int at_y = min_(tile.y.first + rows[i].y, tile.y.length - 1), at_x = min_(tile.x.first + rows[i].x, tile.x.length - 1);
    const u16* const row = params.rows + vector_at(params, tile, params.row_strides, tile.z.first, at_y, at_x, tile.head + h) + pair;
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) a[k][i] = *(const u32*)(row + 16 * k), a[k][2 + i] = *(const u32*)(row + 16 * k + 8);
  }
  const u32 tokens = address_of_shared(memory) +
                     ((h * HALO_Y + from_y - halo.y) * HALO_X + from_x - halo.x + lane % 8) * PITCH + 16 * (lane / 8);
#pragma unroll 2
  for (int r = 0; r < SPAN_Y; r++) {
#pragma unroll
    for (int c = 0; c < SPAN_X / 8; c++) {
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
      const u32 block = tokens + (r * HALO_X + 8 * c) * PITCH;
#pragma unroll
      for (int k = 0; k + 1 < DIM / 16; k += 2) {
        u32 b[4];
        load_matrices(b, block + 32 * k);
        mma(sums, a[k], b[0], b[1]);
        mma(sums, a[k + 1], b[2], b[3]);
      }
      if (DIM % 32) {
        u32 b[2];
        load_matrices(b, block + 2 * DIM - 32);
        mma(sums, a[DIM / 16 - 1], b[0], b[1]);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int slot_y = r - rows[i].first_y, count = (u32)slot_y < (u32)rows[i].count_y ? rows[i].count_x : 0;
        const int slot_x = 8 * c + pair - rows[i].first_x;
        u16* const slot = stage + ((rows[i].y * TILE_X + rows[i].x) * HEADS + h) * SLOTS + slot_y * KERNEL_X + slot_x;
#if HAS_BIAS
        // From the query to the key, both by their positions.
        const int along_y = from_y + r - tile.y.first - rows[i].y + KERNEL_Y - 1;
        const int along_x = from_x + 8 * c + pair - tile.x.first - rows[i].x + KERNEL_X - 1;
        const u16* const entry = bias + along_y * (2 * KERNEL_X - 1) + along_x;
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if ((u32)(slot_x + e) < (u32)count) slot[e] = (u16)pack(fmaf(sums[2 * i + e], params.scale, unpack(entry[e])), 0.f);
        }
#else
        const u32 both = pack(sums[2 * i] * params.scale, sums[2 * i + 1] * params.scale);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if ((u32)(slot_x + e) < (u32)count) slot[e] = half_of(both, e);
        }
#endif
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) unfused_dots(const __grid_constant__ Params params) {
  const Tile tile = tile_of(params);
  if (tile.is_empty()) return;
  const Halo halo = halo_of<true>(params, tile);
  const Halo box = {tile.y.first, tile.x.first, tile.y.there(TILE_Y), tile.x.there(TILE_X)};
  const Window planes = window<CAUSAL_Z>(params.axes[0], tile.z.first, tile.z.length);
  u16* const stage = (u16*)(memory + STAGE);
  const int warp = threadIdx.x / 32;
#pragma unroll 1
  for (int plane = 0; plane < KERNEL_Z; plane++) {
    const bool is_seen = !CAUSAL_Z || planes.start + plane < planes.end;
    if (plane > 0) __syncthreads();
    if (is_seen) {
      load_halo(params, tile, halo, params.tokens, params.token_strides, memory, planes.start + plane, [&](int h) { return (tile.head + h) / GROUP; });
    }
    if (CAUSAL_Z || CAUSAL_Y || CAUSAL_X) {
      const u16 hidden = (u16)pack(params.hidden, 0.f);
      for (int i = threadIdx.x; i < TILE_Y * TILE_X * HEADS * SLOTS; i += THREADS) stage[i] = hidden;
    }
    __syncthreads();
    for (int part = warp; is_seen && part < BANDS * HEADS; part += WARPS) {
      const int h = part / BANDS, y = part % BANDS / BANDS_X * BAND_Y, x = part % BANDS % BANDS_X * BAND_X;
      if (tile.y.first + y >= tile.y.length || tile.x.first + x >= tile.x.length) continue;
      const int along_z = planes.start + plane - tile.z.first + KERNEL_Z - 1;
      const int table = ((tile.head + h) * (2 * KERNEL_Z - 1) + along_z) * (2 * KERNEL_Y - 1) * (2 * KERNEL_X - 1);
      multiply(params, tile, halo, stage, h, y, x, params.bias + table);
    }
    __syncthreads();
    move_weights<TILE_Y, TILE_X, true>(params, tile, box, (u8*)stage, tile.z.first, tile.head, plane);
  }
}
