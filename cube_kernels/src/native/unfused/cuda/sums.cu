// rows[q] = scale * sum over s of weights[q, s] token(q, s)
//
// Of its 16 queries and 16 tokens of their halo at a time, a warp takes the weights from the slots of shared memory, with zeros where a token
// is not in a query's window. Shared memory: the halo's tokens, and weights of the tile, `[TILE_Y, TILE_X, HEADS, SLOTS]`.

constexpr int STAGE = HEADS * HALO_Y * HALO_X * PITCH;

// Adds the tokens of one position along the slowest axis to the sums of one part.
DEVICE void add(const Params& params, const Tile& tile, const Halo& halo, const u16* stage, const Row (&rows)[2], int h, int from_y, int from_x, float (&sums)[DIM / 8][4]) {
  const int lane = threadIdx.x % 32, pair = 2 * (lane % 4);
  const u32 tokens = address_of_shared(memory) +
                     ((h * HALO_Y + from_y - halo.y) * HALO_X + from_x - halo.x + lane % 16) * PITCH + 16 * (lane / 16);
#pragma unroll 2
  for (int r = 0; r < SPAN_Y; r++) {
#pragma unroll
    for (int c = 0; c < SPAN_X / 16; c++) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const Row& row = rows[i % 2];
        const int slot_y = r - row.first_y, count = (u32)slot_y < (u32)row.count_y ? row.count_x : 0;
        const int slot_x = 16 * c + 8 * (i / 2) + pair - row.first_x;
        const u16* const slot = stage + ((row.y * TILE_X + row.x) * HEADS + h) * SLOTS + slot_y * KERNEL_X + slot_x;
        const u32 low = (u32)slot_x < (u32)count ? slot[0] : 0, high = (u32)(slot_x + 1) < (u32)count ? slot[1] : 0;
        a[i] = low | high << 16;
      }
#pragma unroll
      for (int d = 0; d < DIM / 16; d++) {
        u32 b[4];
        load_transposed(b, tokens + (r * HALO_X + 16 * c) * PITCH + 32 * d);
        mma(sums[2 * d], a, b[0], b[1]);
        mma(sums[2 * d + 1], a, b[2], b[3]);
      }
    }
  }
}

// A row of those of a part of which some are no numbers, in which nothing has a share that it does not see.
DEVICE void sum_row(const Params& params, const Tile& tile, int h, int y, int x) {
  const int at_z = tile.z.first, at_y = tile.y.first + y, at_x = tile.x.first + x, head = tile.head + h;
  if (at_y >= tile.y.length || at_x >= tile.x.length) return;
  const Window along_z = window<CAUSAL_Z>(params.axes[0], at_z, tile.z.length), along_y = window<CAUSAL_Y>(params.axes[1], at_y, tile.y.length);
  const Window along_x = window<CAUSAL_X>(params.axes[2], at_x, tile.x.length);
  const u16* const weights = params.weights + (row_at(params, tile, at_z, at_y, at_x) + head) * KERNEL_Z * SLOTS;
  for (int d = threadIdx.x % 32; d < DIM; d += 32) {
    float sum = 0.f;
    for (int z = along_z.start; z < along_z.end; z++) {
      for (int y = along_y.start; y < along_y.end; y++) {
        for (int x = along_x.start; x < along_x.end; x++) {
          const int slot = ((z - along_z.start) * KERNEL_Y + y - along_y.start) * KERNEL_X + x - along_x.start;
          const u16* const token = params.tokens + vector_at(params, tile, params.token_strides, z, y, x, head / GROUP);
          sum = fmaf(unpack(weights[slot]), unpack(token[d]), sum);
        }
      }
    }
    params.rows[vector_at(params, tile, params.row_strides, at_z, at_y, at_x, head) + d] = (u16)pack(sum * params.scale, 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) unfused_sums(const __grid_constant__ Params params) {
  const Tile tile = tile_of(params);
  if (tile.is_empty()) return;
  const Halo halo = halo_of<true>(params, tile);
  const Halo box = {tile.y.first, tile.x.first, tile.y.there(TILE_Y), tile.x.there(TILE_X)};
  const Window planes = window<CAUSAL_Z>(params.axes[0], tile.z.first, tile.z.length);
  u8* const stage = memory + STAGE;
  const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int h = part / BANDS, y = part % BANDS / BANDS_X * BAND_Y, x = part % BANDS % BANDS_X * BAND_X;
  const bool is_there = tile.y.first + y < tile.y.length && tile.x.first + x < tile.x.length;
  const int from_y = window<CAUSAL_Y>(params.axes[1], tile.y.first + y, tile.y.length).start;
  const int from_x = window<CAUSAL_X>(params.axes[2], tile.x.first + x, tile.x.length).start;
  Row rows[2];
#pragma unroll
  for (int i = 0; i < 2; i++) rows[i] = row_of<true>(params, tile, lane / 4 + 8 * i, y, x, from_y, from_x);
  float sums[DIM / 8][4] = {};
#pragma unroll 1
  for (int plane = 0; plane < planes.end - planes.start; plane++) {
    if (plane > 0) __syncthreads();
    move_weights<TILE_Y, TILE_X, false>(params, tile, box, stage, tile.z.first, tile.head, plane);
    load_halo(params, tile, halo, params.tokens, params.token_strides, memory, planes.start + plane, [&](int h) { return (tile.head + h) / GROUP; });
    __syncthreads();
    if (is_there) add(params, tile, halo, (const u16*)stage, rows, h, from_y, from_x, sums);
  }
  if (!is_there) return;
  if (has_nan(sums, rows[0].is_there, rows[1].is_there)) {
#pragma unroll 1
    for (int row = 0; row < 16; row++) sum_row(params, tile, h, y + row / BAND_X, x + row % BAND_X);
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (!rows[i].is_there) continue;
    const i64 to = vector_at(params, tile, params.row_strides, tile.z.first, tile.y.first + rows[i].y, tile.x.first + rows[i].x, tile.head + h);
    store_row(params.rows + to, sums, i, params.scale);
  }
}
