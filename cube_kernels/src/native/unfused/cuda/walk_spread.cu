// tokens[k] = scale * sum over (q, s) that see it of weights[q, s] rows[q]
//
// The sums of `spread.cu`, by CTAs that go along strips. A line of the ring has vectors of queries and, WEIGHTS bytes on, their weights, `[HALO_X, HEADS, ROW]`.
// While a tile is summed, the lines that the next one needs are on their way in. Shared memory: the ring, and rows of a warp's results.

// As many bytes as are read in front of weights and behind them for nothing.
constexpr int GAP = (2 * ((SPAN_Y + KERNEL_Y + 3) * KERNEL_X + SPAN_X + 16) + 15) / 16 * 16;
constexpr int WEIGHTS = RING_LINE, RING_STEP = (RING_LINE + LINE + 15) / 16 * 16, RESULTS = RING * RING_STEP + GAP;
static_assert(GROUP == 1 && (PITCHED || SHIFTED), "");

// What is the same for all tiles of a strip: columns of a part.
struct Columns {
  int slots[2][SPAN_X / 8][2];       // where the slots of two keys in the windows of a lane's columns are, but for the line
  u32 masks[2][SPAN_X / 8];          // what is seen of a pair of columns
  u32 rows;                          // what a lane reads of a line of the ring

  DEVICE void aim(const Params& params, const Tile& tile, const Part& part, int halo_x) {
    const int lane = threadIdx.x % 32;
    const int from_x = visitors<CAUSAL_X>(params.axes[2], tile.x.first + part.x, tile.x.length).start;
    const int corner = WEIGHTS / 2 + (from_x - halo_x + lane % 4) * HEADS * ROW + part.h * ROW;
#pragma unroll
    for (int c = 0; c < SPAN_X / 8; c++) {
      masks[0][c] = masks[1][c] = 0;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int column = 8 * c + 4 * e, position = from_x + column + lane % 4;
        const Window seen = window<CAUSAL_X>(params.axes[2], position, tile.x.length);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int at_x = tile.x.first + part.x + lane / 4 + (BAND_X == 8 ? 0 : 8 * i);
          slots[i][c][e] = corner + column * HEADS * ROW + at_x - seen.start;
          if (at_x < tile.x.length && position < tile.x.length && seen.start <= at_x && at_x < seen.end) masks[i][c] |= 0xffffu << 16 * e;
        }
      }
    }
    // Lanes have neighbors, whose slots lie in different banks.
    const int column = lane % 16 / 8 * 8 + lane % 8 / 2 + 4 * (lane % 2);
    rows = place_of(from_x - halo_x + column, part.h * 2 * DIM + 16 * (lane / 16));
  }
};

// Adds a tile's queries to the sums of one part of keys; `line` is where the first line of the part is in the ring, `from_y` which one it is.
DEVICE void add(const Params& params, const Tile& tile, const Part& part, const Columns& columns, const Weights<HALO_X>& weights, u32 line, int from_y,
                float (&sums)[DIM / 8][4]) {
  int at_y[2];
#pragma unroll
  for (int i = 0; i < 2; i++) at_y[i] = tile.y.first + part.y + (BAND_X == 8 ? i : 0);
  const int end = visitors<CAUSAL_Y>(params.axes[1], tile.y.first + part.y + BAND_Y - 1, tile.y.length).end - from_y;
#pragma unroll(SPAN_X <= 16 ? 4 : 1)
  for (int r = 0; r < end; r++) {
    const u32 at = in_ring<RING * RING_STEP>(line + r * RING_STEP);
    const Window seen = window<CAUSAL_Y>(params.axes[1], from_y + r, tile.y.length);
    u32 is_line[2];
    const u16* from[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      is_line[i] = seen.start <= at_y[i] && at_y[i] < seen.end && at_y[i] < tile.y.length ? ~0u : 0;
      from[i] = (const u16*)(memory + at + weights.shift(from_y + r)) + (at_y[i] - seen.start) * KERNEL_X;
    }
#pragma unroll
    for (int c = 0; c < SPAN_X / 8; c += 2) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i % 2, block = c + i / 2;
        a[i] = (from[row][columns.slots[row][block][0]] | (u32)from[row][columns.slots[row][block][1]] << 16) & columns.masks[row][block] & is_line[row];
      }
      add_products(sums, a, address_of_shared(memory) + at + columns.rows + 8 * c * TOKEN);
    }
  }
}

// A key of those of a part of which some are no numbers, in which nothing has a share that does not see it.
__device__ __noinline__ void sum_key(const Params& params, const Tile& tile, int h, int y, int x) {
  const int at_z = tile.z.first, at_y = tile.y.first + y, at_x = tile.x.first + x, head = tile.head + h;
  if (at_y >= tile.y.length || at_x >= tile.x.length) return;
  const Window along_y = visitors<CAUSAL_Y>(params.axes[1], at_y, tile.y.length), along_x = visitors<CAUSAL_X>(params.axes[2], at_x, tile.x.length);
  for (int d = threadIdx.x % 32; d < DIM; d += 32) {
    float sum = 0.f;
    for (int y = along_y.start; y < along_y.end; y++) {
      const int slot_y = at_y - window<CAUSAL_Y>(params.axes[1], y, tile.y.length).start;
      for (int x = along_x.start; x < along_x.end; x++) {
        const int slot_x = at_x - window<CAUSAL_X>(params.axes[2], x, tile.x.length).start;
        const u16* const weights = params.weights + (row_at(params, tile, at_z, y, x) + head) * ROW_PITCH;
        const u16* const row = rows_of(params, tile) + vector_at(params, tile, params.row_strides, at_z, y, x, head);
        sum = fmaf(unpack(weights[slot_y * KERNEL_X + slot_x]), unpack(row[d]), sum);
      }
    }
    tokens_of(params, tile)[vector_at(params, tile, params.token_strides, at_z, at_y, at_x, head) + d] = (u16)pack(sum * params.scale, 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) unfused_spread(const __grid_constant__ Params params) {
  const Part part(threadIdx.x / 32);
  const auto start = [&](const Tile& tile, int y) { return visitors<CAUSAL_Y>(params.axes[1], y, tile.y.length).start; };
  const auto end_of = [&](const Tile& tile) { return visitors<CAUSAL_Y>(params.axes[1], tile.y.first + TILE_Y - 1, tile.y.length).end; };
  HaloLines<HALO_X, RING_STEP> lines;
  int origin = 0, loaded = 0;
  Weights<HALO_X> weights;
  const auto place = [&](int y) { return (u32)(y - origin) % RING * RING_STEP + WEIGHTS; };
  Columns columns;
  Tile tile;
  Steps steps(params);
#pragma unroll 1
  for (bool is_first = true; steps.number < steps.end; steps.number++) {
    int number = steps.number;
    if (is_first || split(number, params.axes[1].tiles) == 0) {
      is_first = false;
      tile = strip_of(params, steps.number);
      if (!tile.is_empty()) {
        const int last_x = tile.x.first + tile.x.there(TILE_X) - 1;
        const int halo_x = visitors<CAUSAL_X>(params.axes[2], tile.x.first, tile.x.length).start;
        const int count = visitors<CAUSAL_X>(params.axes[2], last_x, tile.x.length).end - halo_x;
        columns.aim(params, tile, part, halo_x);
        lines.aim(params, tile, rows_of(params, tile), params.row_strides, tile.z.first, halo_x, count, [&](int h) { return tile.head + h; });
        weights.aim(params, tile, halo_x, count);
        origin = start(tile, tile.y.first), loaded = end_of(tile);
        // All have summed the last tile of the strip before.
        __syncthreads();
        weights.load(params, origin, min_(loaded, tile.y.length), place);
        lines.load(address_of_shared(memory), origin, loaded, origin);
      }
    }
    if (tile.is_empty()) continue;
    wait_for_copies();
    __syncthreads();
    Tile next = tile;
    next.y.first += TILE_Y;
    if (steps.number + 1 < steps.end && !next.is_empty()) {
      const int end = end_of(next);
      weights.load(params, loaded, min_(end, tile.y.length), place);
      lines.load(address_of_shared(memory), loaded, end, origin);
      loaded = end;
    }
    if (part.is_in(tile)) {
      const int from_y = start(tile, tile.y.first + part.y);
      float sums[DIM / 8][4];
      zero(sums);
      add(params, tile, part, columns, weights, (u32)(from_y - origin) % RING * RING_STEP, from_y, sums);
      const auto is_there = [&](int i) { return Row(tile, part, i).is_there; };
      if (has_nan(sums, is_there(0), is_there(1))) {
#pragma unroll 1
        for (int key = 0; key < 16; key++) sum_key(params, tile, part.h, part.y + key / BAND_X, part.x + key % BAND_X);
      } else {
        u16* const sample = tokens_of(params, tile);
        store_part<false>(params, tile, part, sums, memory + RESULTS, sample, params.token_strides);
      }
    }
    tile = next;
  }
}
