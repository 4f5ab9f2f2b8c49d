// rows[q] = scale * sum over s of weights[q, s] token(q, s)
//
// The sums of `sums.cu`, by CTAs that go along strips. While a tile is summed, the lines that the next one needs and its weights are on their
// way in. Shared memory: the ring, weights of two tiles, `[TILE_Y, TILE_X, HEADS, ROW]`, and rows of a warp's results.

// As many bytes as are read in front of weights and behind them for nothing.
constexpr int GAP = 2 * ((SPAN_Y + KERNEL_Y + 3) * KERNEL_X + SPAN_X + 16);
constexpr int STAGE_BYTES = (2 * TILE_Y * TILE_X * HEADS * ROW + GAP + 15) / 16 * 16;
constexpr int STAGE = (RING * RING_LINE + GAP + 15) / 16 * 16, RESULTS = STAGE + 2 * STAGE_BYTES;

DEVICE int row_y(const Part& part, int i) { return part.y + (BAND_X == 8 ? (i ^ (int)(threadIdx.x / 8 % 2)) : 0); }
DEVICE int row_x(const Part& part, int i) { return part.x + (int)threadIdx.x % 32 / 4 + (BAND_X == 8 ? 0 : 8 * i); }

// What is the same for all tiles of a strip: columns of a part.
struct Columns {
  int slots[2][2];                   // where a lane's two columns of each row are in the stage, but for the line
  u32 masks[2][SPAN_X / 8];          // what is seen of a pair of columns
  u32 tokens;                        // what a lane reads of a line of the ring

  DEVICE void aim(const Params& params, const Tile& tile, const Part& part, int halo_x) {
    const int lane = threadIdx.x % 32, pair = 2 * (lane % 4);
    const int from_x = window<CAUSAL_X>(params.axes[2], tile.x.first + part.x, tile.x.length).start;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int x = row_x(part, i);
      const Window along_x = window<CAUSAL_X>(params.axes[2], tile.x.first + x, tile.x.length);
      const int first = along_x.start - from_x, count = tile.x.first + x < tile.x.length ? along_x.end - along_x.start : 0;
#pragma unroll
      for (int c = 0; c < SPAN_X / 8; c++) {
        masks[i][c] = ((u32)(8 * c + pair - first) < (u32)count ? 0xffff : 0) | ((u32)(8 * c + pair + 1 - first) < (u32)count ? 0xffffu << 16 : 0);
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int column = FOLDED && pair + e < first ? pair + e + 8 : pair + e;
        slots[i][e] = ((row_y(part, i) * TILE_X + x) * HEADS + part.h) * ROW + column - first;
      }
    }
    tokens = place_of(from_x - halo_x + lane % 16, part.h * 2 * DIM + 16 * (lane / 16));
  }
};

// Adds a tile's tokens to the sums of one part; `line` is where the first line of the part is in the ring, `from_y` which one it is.
DEVICE void add(const Params& params, const Tile& tile, const Part& part, const Columns& columns, u32 line, int from_y, int stage, float (&sums)[DIM / 8][4]) {
  const u16* slots[2][2];
  Lines lines[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int y = tile.y.first + row_y(part, i);
    const Window along_y = window<CAUSAL_Y>(params.axes[1], y, tile.y.length);
    const int first = along_y.start - from_y, count = y < tile.y.length ? along_y.end - along_y.start : 0;
    lines[i] = (((Lines)1 << count) - 1) << first;
#pragma unroll
    for (int e = 0; e < 2; e++) slots[i][e] = (const u16*)memory + opaque(stage + columns.slots[i][e] - first * KERNEL_X);
  }
#pragma unroll(SPAN_X <= 16 && SPAN_Y <= 16 ? SPAN_Y : 1)
  for (int r = 0; r < SPAN_Y; r++) {
    const u32 is_line[2] = {all_if(lines[0], r), all_if(lines[1], r)};
    const u32 at = address_of_shared(memory) + in_ring<RING * RING_LINE>(line + r * RING_LINE) + columns.tokens;
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
      for (int i = 0; i < 4; i++) a[i] = pairs[i % 2][FOLDED ? 0 : c + i / 2] & columns.masks[i % 2][c + i / 2] & is_line[i % 2];
      add_products(sums, a, at + 8 * c * TOKEN);
    }
  }
}

// A row of those of a part of which some are no numbers, in which nothing has a share that it does not see.
__device__ __noinline__ void sum_row(const Params& params, const Tile& tile, int h, int y, int x) {
  const int at_z = tile.z.first, at_y = tile.y.first + y, at_x = tile.x.first + x, head = tile.head + h;
  if (at_y >= tile.y.length || at_x >= tile.x.length) return;
  const Window along_y = window<CAUSAL_Y>(params.axes[1], at_y, tile.y.length), along_x = window<CAUSAL_X>(params.axes[2], at_x, tile.x.length);
  const u16* const weights = params.weights + (row_at(params, tile, at_z, at_y, at_x) + head) * ROW_PITCH;
  for (int d = threadIdx.x % 32; d < DIM; d += 32) {
    float sum = 0.f;
    for (int y = along_y.start; y < along_y.end; y++) {
      for (int x = along_x.start; x < along_x.end; x++) {
        const int slot = (y - along_y.start) * KERNEL_X + x - along_x.start;
        const u16* const token = tokens_of(params, tile) + vector_at(params, tile, params.token_strides, at_z, y, x, head / GROUP);
        sum = fmaf(unpack(weights[slot]), unpack(token[d]), sum);
      }
    }
    rows_of(params, tile)[vector_at(params, tile, params.row_strides, at_z, at_y, at_x, head) + d] = (u16)pack(sum * params.scale, 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) unfused_sums(const __grid_constant__ Params params) {
  const Part part(threadIdx.x / 32);
  const auto start = [&](const Tile& tile, int y) { return window<CAUSAL_Y>(params.axes[1], y, tile.y.length).start; };
  HaloLines<HALO_X, RING_LINE> lines;
  Columns columns;
  Weights<TILE_X> weights;
  Tile tile;
  int origin = 0, loaded = 0, stage = 0;
  const auto load_weights = [&](const Tile& of, int stage) {
    weights.load(params, of.y.first, of.y.first + of.y.there(TILE_Y), [&](int y) { return (u32)(STAGE + stage * STAGE_BYTES + (y - of.y.first) * 2 * TILE_X * HEADS * ROW); });
  };
  Steps steps(params);
#pragma unroll 1
  for (bool is_first = true; steps.number < steps.end; steps.number++) {
    int number = steps.number;
    if (is_first || split(number, params.axes[1].tiles) == 0) {
      is_first = false;
      tile = strip_of(params, steps.number);
      if (!tile.is_empty()) {
        const int last_x = tile.x.first + tile.x.there(TILE_X) - 1;
        const int halo_x = window<CAUSAL_X>(params.axes[2], tile.x.first, tile.x.length).start;
        const int count = window<CAUSAL_X>(params.axes[2], last_x, tile.x.length).end - halo_x;
        columns.aim(params, tile, part, halo_x);
        lines.aim(params, tile, tokens_of(params, tile), params.token_strides, tile.z.first, halo_x, count, [&](int h) { return (tile.head + h) / GROUP; });
        origin = start(tile, tile.y.first), loaded = start(tile, tile.y.first + TILE_Y - BAND_Y) + SPAN_Y;
        weights.aim(params, tile, tile.x.first, tile.x.there(TILE_X));
        // All have summed the last tile of the strip before.
        __syncthreads();
        lines.load(address_of_shared(memory), origin, loaded, origin);
        load_weights(tile, stage);
      }
    }
    if (tile.is_empty()) continue;
    wait_for_copies();
    __syncthreads();
    Tile next = tile;
    next.y.first += TILE_Y;
    if (steps.number + 1 < steps.end && !next.is_empty()) {
      const int end = start(tile, next.y.first + TILE_Y - BAND_Y) + SPAN_Y;
      lines.load(address_of_shared(memory), loaded, end, origin);
      load_weights(next, stage ^ 1);
      loaded = end;
    }
    if (part.is_in(tile)) {
      const int from_y = start(tile, tile.y.first + part.y);
      float sums[DIM / 8][4];
      zero(sums);
      add(params, tile, part, columns, (u32)(from_y - origin) % RING * RING_LINE, from_y, (STAGE + stage * STAGE_BYTES) / 2, sums);
      const auto is_there = [&](int i) { return tile.y.first + row_y(part, i) < tile.y.length && tile.x.first + row_x(part, i) < tile.x.length; };
      if (has_nan(sums, is_there(0), is_there(1))) {
#pragma unroll 1
        for (int row = 0; row < 16; row++) sum_row(params, tile, part.h, part.y + row / BAND_X, part.x + row % BAND_X);
      } else {
        store_part<true>(params, tile, part, sums, memory + RESULTS, rows_of(params, tile), params.row_strides);
      }
    }
    stage ^= 1;
    tile = next;
  }
}
