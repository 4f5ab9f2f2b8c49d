// rows[q] = scale * sum over s of weights[q, s] token(q, s)
//
// Of its 16 queries and 16 tokens of their halo at a time, a warp takes the weights from the slots of shared memory, with zeros where a token
// is not in a query's window. Shared memory: the halo's tokens, and weights of the tile, `[TILE_Y, TILE_X, HEADS, ROW]`.

constexpr int STAGE = HEADS * HALO_Y * HALO_X * PITCH;

// Adds the tokens of one position along the slowest axis to the sums of one part.
DEVICE void add(const Params& params, const Tile& tile, const Halo& halo, const u16* stage, const Part& part, float (&sums)[DIM / 8][4]) {
  const int lane = threadIdx.x % 32, pair = 2 * (lane % 4);
  const int from_y = window<CAUSAL_Y>(params.axes[1], tile.y.first + part.y, tile.y.length).start;
  const int from_x = window<CAUSAL_X>(params.axes[2], tile.x.first + part.x, tile.x.length).start;
  // Where the slots of a lane's two columns of each row would be in the first line; in which lines a row sees any; what is seen of a
  // pair of columns. All slots are read, and those that are not the row's become zero.
  const u16* slots[2][2];
  Lines lines[2];
  u32 masks[2][SPAN_X / 8];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Row row(tile, part, i);
    const Seen seen(params, tile, row, from_y, from_x);
    lines[i] = seen.lines();
#pragma unroll
    for (int c = 0; c < SPAN_X / 8; c++) {
      masks[i][c] = (seen.has_column(8 * c + pair) ? 0xffff : 0) | (seen.has_column(8 * c + pair + 1) ? 0xffffu << 16 : 0);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      slots[i][e] = stage + ((row.y * TILE_X + row.x) * HEADS + part.h) * ROW - seen.first_y * KERNEL_X + seen.column(pair + e) - seen.first_x;
    }
  }
  const u32 tokens = address_of_shared(memory) +
                     ((part.h * HALO_Y + from_y - halo.y) * HALO_X + from_x - halo.x + lane % 16) * PITCH + 16 * (lane / 16);
#pragma unroll(SPAN_X <= 16 && SPAN_Y <= 16 ? SPAN_Y : 1)
  for (int r = 0; r < SPAN_Y; r++) {
    const u32 is_line[2] = {all_if(lines[0], r), all_if(lines[1], r)};
    u32 pairs[2][BLOCKS];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int c = 0; c < BLOCKS; c++) pairs[i][c] = slots[i][0][r * KERNEL_X + 8 * c] | (u32)slots[i][1][r * KERNEL_X + 8 * c] << 16;
    }
#pragma unroll
    for (int c = 0; c < SPAN_X / 8; c += 2) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = pairs[i % 2][FOLDED ? 0 : c + i / 2] & masks[i % 2][c + i / 2] & is_line[i % 2];
      add_products(sums, a, tokens + (r * HALO_X + 8 * c) * PITCH);
    }
  }
}

// A row of those of a part of which some are no numbers, in which nothing has a share that it does not see.
__device__ __noinline__ void sum_row(const Params& params, const Tile& tile, int h, int y, int x) {
  const int at_z = tile.z.first, at_y = tile.y.first + y, at_x = tile.x.first + x, head = tile.head + h;
  if (at_y >= tile.y.length || at_x >= tile.x.length) return;
  const Window along_z = window<CAUSAL_Z>(params.axes[0], at_z, tile.z.length), along_y = window<CAUSAL_Y>(params.axes[1], at_y, tile.y.length);
  const Window along_x = window<CAUSAL_X>(params.axes[2], at_x, tile.x.length);
  const u16* const weights = params.weights + (row_at(params, tile, at_z, at_y, at_x) + head) * ROW_PITCH;
  for (int d = threadIdx.x % 32; d < DIM; d += 32) {
    float sum = 0.f;
    for (int z = along_z.start; z < along_z.end; z++) {
      for (int y = along_y.start; y < along_y.end; y++) {
        for (int x = along_x.start; x < along_x.end; x++) {
          const int slot = ((z - along_z.start) * KERNEL_Y + y - along_y.start) * KERNEL_X + x - along_x.start;
          const u16* const token = tokens_of(params, tile) + vector_at(params, tile, params.token_strides, z, y, x, head / GROUP);
          sum = fmaf(unpack(weights[slot]), unpack(token[d]), sum);
        }
      }
    }
    rows_of(params, tile)[vector_at(params, tile, params.row_strides, at_z, at_y, at_x, head) + d] = (u16)pack(sum * params.scale, 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) unfused_sums(const __grid_constant__ Params params) {
  const Tile tile = tile_of(params);
  if (tile.is_empty()) return;
  const Halo halo = halo_of<true>(params, tile);
  const Halo box = {tile.y.first, tile.x.first, tile.y.there(TILE_Y), tile.x.there(TILE_X)};
  const Window planes = window<CAUSAL_Z>(params.axes[0], tile.z.first, tile.z.length);
  u8* const stage = memory + STAGE;
  float sums[DIM / 8][4];
  const int count = planes.end - planes.start;
#pragma unroll 1
  for (int plane = 0; plane < count; plane++) {
    if (plane > 0) __syncthreads();
    move_weights<TILE_Y, TILE_X, false>(params, tile, box, stage, tile.z.first, tile.head, plane);
    load_halo(params, tile, halo, tokens_of(params, tile), params.token_strides, memory, planes.start + plane, [&](int h) { return (tile.head + h) / GROUP; });
    wait_for_copies();
    __syncthreads();
    // A warp has one part where there are several positions along the slowest axis.
#pragma unroll 1
    for (int number = threadIdx.x / 32; number < PARTS; number += WARPS) {
      const Part part(number);
      if (!part.is_in(tile)) continue;
      if (plane == 0) zero(sums);
      add(params, tile, halo, (const u16*)stage, part, sums);
      if (plane + 1 < count) continue;
      const Row rows[2] = {Row(tile, part, 0), Row(tile, part, 1)};
      if (has_nan(sums, rows[0].is_there, rows[1].is_there)) {
#pragma unroll 1
        for (int row = 0; row < 16; row++) sum_row(params, tile, part.h, part.y + row / BAND_X, part.x + row % BAND_X);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (!rows[i].is_there) continue;
        const int to = vector_at(params, tile, params.row_strides, tile.z.first, tile.y.first + rows[i].y, tile.x.first + rows[i].x, tile.head + part.h);
        store_row(rows_of(params, tile) + to, sums, i, params.scale);
      }
    }
  }
}
