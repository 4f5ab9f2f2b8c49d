// weights[q, s] = scale * rows[q] . token(q, s) + bias, and `hidden` in slots without a token.
//
// A warp multiplies its 16 queries by all tokens of their halo, and of each product leaves those that are in a query's window in the
// slots of shared memory, from which whole lines are written. Compile-time parameters besides: HAS_BIAS. Shared memory: the halo's tokens, and
// weights of the tile, `[TILE_Y, TILE_X, HEADS, SLOTS]`.

constexpr int STAGE = HEADS * HALO_Y * HALO_X * PITCH;

// Vectors of a part's queries; of one that is not there those of another.
DEVICE void load_queries(const Params& params, const Tile& tile, const Part& part, u32 (&a)[DIM / 16][4]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Row row(tile, part, i);
    const int at_y = min_(tile.y.first + row.y, tile.y.length - 1), at_x = min_(tile.x.first + row.x, tile.x.length - 1);
    const u16* const vector = rows_of(params, tile) + vector_at(params, tile, params.row_strides, tile.z.first, at_y, at_x, tile.head + part.h) +
                              2 * (threadIdx.x % 4);
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) a[k][i] = *(const u32*)(vector + 16 * k), a[k][2 + i] = *(const u32*)(vector + 16 * k + 8);
  }
}

// The products of one part, into the slots of one position along the slowest axis; `bias` is the bias of the part's head there.
DEVICE void multiply(const Params& params, const Tile& tile, const Halo& halo, u16* stage, const Part& part, const u32 (&a)[DIM / 16][4], const u16* bias) {
  const int lane = threadIdx.x % 32, pair = 2 * (lane % 4);
  const int from_y = window<CAUSAL_Y>(params.axes[1], tile.y.first + part.y, tile.y.length).start;
  const int from_x = window<CAUSAL_X>(params.axes[2], tile.x.first + part.x, tile.x.length).start;

  // Where the slots of a lane's two columns of each row would be in the first line; in which lines a column is seen; which it is.
  u16* slots[2][2];
  Lines lines[2][BLOCKS][2];
  bool is_second[2][2];
#if HAS_BIAS
  const u16* entries[2][2];
#endif
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Row row(tile, part, i);
    const Seen seen(params, tile, row, from_y, from_x);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int column = seen.column(pair + e);
      is_second[i][e] = column >= 8;
      slots[i][e] = stage + ((row.y * TILE_X + row.x) * HEADS + part.h) * SLOTS - seen.first_y * KERNEL_X + column - seen.first_x;
#pragma unroll
      for (int c = 0; c < BLOCKS; c++) lines[i][c][e] = seen.has_column(column + 8 * c) ? seen.lines() : 0;
#if HAS_BIAS
      // From the query to the key, both by their positions.
      const int along_y = from_y - tile.y.first - row.y + KERNEL_Y - 1, along_x = from_x + column - tile.x.first - row.x + KERNEL_X - 1;
      entries[i][e] = bias + along_y * (2 * KERNEL_X - 1) + along_x;
#endif
    }
  }
  const u32 tokens = address_of_shared(memory) +
                     ((part.h * HALO_Y + from_y - halo.y) * HALO_X + from_x - halo.x + lane % 8) * PITCH + 16 * (lane / 8);
#pragma unroll(SPAN_X <= 16 && SPAN_Y <= 16 ? SPAN_Y : 1)
  for (int r = 0; r < SPAN_Y; r++) {
    float sums[SPAN_X / 8][4] = {};
#pragma unroll
    for (int c = 0; c < SPAN_X / 8; c++) {
      const u32 block = tokens + (r * HALO_X + 8 * c) * PITCH;
#pragma unroll
      for (int k = 0; k + 1 < DIM / 16; k += 2) {
        u32 b[4];
        load_matrices(b, block + 32 * k);
        mma(sums[c], a[k], b[0], b[1]);
        mma(sums[c], a[k + 1], b[2], b[3]);
      }
      if (DIM % 32) {
        u32 b[2];
        load_matrices(b, block + 2 * DIM - 32);
        mma(sums[c], a[DIM / 16 - 1], b[0], b[1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int c = 0; c < BLOCKS; c++) {
        float scores[2];
        bool is_seen[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float sum = FOLDED && is_second[i][e] ? sums[SPAN_X / 8 - 1][2 * i + e] : sums[c][2 * i + e];
          scores[e] = sum * params.scale;
          is_seen[e] = lines[i][c][e] >> r & 1;
#if HAS_BIAS
          if (is_seen[e]) scores[e] += unpack(entries[i][e][r * (2 * KERNEL_X - 1) + 8 * c]);
#endif
        }
        const u32 both = pack(scores[0], scores[1]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if (is_seen[e]) slots[i][e][r * KERNEL_X + 8 * c] = (u16)(e ? both >> 16 : both & 0xffff);
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) unfused_dots(const __grid_constant__ Params params) {
  const Tile tile = tile_of(params);
  if (tile.is_empty()) return;
  const Halo halo = halo_of<true>(params, tile);
  const Halo box = {tile.y.first, tile.x.first, tile.y.there(TILE_Y), tile.x.there(TILE_X)};
  const Window planes = window<CAUSAL_Z>(params.axes[0], tile.z.first, tile.z.length);
  u16* const stage = (u16*)(memory + STAGE);
  constexpr int PER_WARP = PARTS / WARPS;
  u32 queries[PER_WARP][DIM / 16][4];
#pragma unroll
  for (int i = 0; i < PER_WARP; i++) load_queries(params, tile, Part(threadIdx.x / 32 + i * WARPS), queries[i]);
#pragma unroll 1
  for (int plane = 0; plane < KERNEL_Z; plane++) {
    const bool is_seen = !CAUSAL_Z || planes.start + plane < planes.end;
    if (plane > 0) __syncthreads();
    if (is_seen) {
      load_halo(params, tile, halo, tokens_of(params, tile), params.token_strides, memory, planes.start + plane, [&](int h) { return (tile.head + h) / GROUP; });
    }
    if (CAUSAL_Z || CAUSAL_Y || CAUSAL_X) {
      const u16 hidden = (u16)pack(params.hidden, 0.f);
      for (int i = threadIdx.x; i < TILE_Y * TILE_X * HEADS * SLOTS; i += THREADS) stage[i] = hidden;
    }
    wait_for_copies();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
      const Part part(threadIdx.x / 32 + i * WARPS);
      if (!is_seen || !part.is_in(tile)) continue;
      const int along_z = planes.start + plane - tile.z.first + KERNEL_Z - 1;
      const int table = ((tile.head + part.h) * (2 * KERNEL_Z - 1) + along_z) * (2 * KERNEL_Y - 1) * (2 * KERNEL_X - 1);
      multiply(params, tile, halo, stage, part, queries[i], params.bias + table);
    }
    __syncthreads();
    move_weights<TILE_Y, TILE_X, true>(params, tile, box, (u8*)stage, tile.z.first, tile.head, plane);
  }
}
