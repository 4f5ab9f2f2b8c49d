// weights[q, s] = scale * rows[q] . token(q, s) + bias, and `hidden` in slots without a token.
//
// The products of `dots.cu`, by CTAs that go along strips. While a tile is multiplied, the lines that the next one needs and its queries are
// on their way in, and the weights of the one before are on their way out. Shared memory: the ring, and weights of two tiles, `[TILE_Y, TILE_X, HEADS, SLOTS]`.
//
// In which order a product takes the elements of vectors is all the same: lane t of four has 8 neighbors of each 32, which are one load of 16 bytes.

constexpr int STAGE = RING * RING_LINE, STAGE_BYTES = (2 * TILE_Y * TILE_X * HEADS * SLOTS + 15) / 16 * 16, BLOCKS_OF_32 = DIM / 32;
static_assert(DIM % 32 == 0, "");

// A lane's rows: neighbors along the slower axis. Of each four along the faster axis two have the first one first: their slots
// lie in other banks.
DEVICE int row_y(const Part& part, int i) { return part.y + (BAND_X == 8 ? (i ^ (int)(threadIdx.x / 8 % 2)) : 0); }
DEVICE int row_x(const Part& part, int i) { return part.x + (int)threadIdx.x % 32 / 4 + (BAND_X == 8 ? 0 : 8 * i); }

// As loads bring them, and as products take them.
typedef uint4 Loaded[2][BLOCKS_OF_32];
typedef u32 Queries[DIM / 16][4];

DEVICE void arrange(Queries& to, const Loaded& from) {
#pragma unroll
  for (int k = 0; k < BLOCKS_OF_32; k++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      to[2 * k][i] = opaque(from[i][k].x), to[2 * k][i + 2] = opaque(from[i][k].y);
      to[2 * k + 1][i] = opaque(from[i][k].z), to[2 * k + 1][i + 2] = opaque(from[i][k].w);
    }
  }
}

// Vectors of a part's queries; of one that is not there those of another.
struct Reader {
  const u16* sample;
  int at[2], step;                   // of the rows of line 0, and from one line to the next

  DEVICE void aim(const Params& params, const Tile& tile, const Part& part) {
    sample = rows_of(params, tile);
    step = params.row_strides[1] * (int)params.axes[1].dilation.value;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int x = min_(tile.x.first + row_x(part, i), tile.x.length - 1);
      at[i] = vector_at(params, tile, params.row_strides, tile.z.first, 0, x, tile.head + part.h) + 8 * (threadIdx.x % 4);
    }
  }
  DEVICE void load(const Tile& tile, const Part& part, Loaded& to) const {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u16* const vector = sample + (at[i] + min_(tile.y.first + row_y(part, i), tile.y.length - 1) * step);
#pragma unroll
      for (int k = 0; k < BLOCKS_OF_32; k++) to[i][k] = *(const uint4*)(vector + 32 * k);
    }
  }
};

// What is the same for all tiles of a strip: columns of a part.
struct Columns {
  int slots[2][2];                   // where a lane's two columns of each row are in the stage, but for the line
  bool is_seen[2][BLOCKS][2], is_second[2][2];
  u32 tokens[BLOCKS_OF_32];          // what a lane reads of a line of the ring
#if HAS_BIAS
  int entries[2][2];
#endif

  DEVICE void aim(const Params& params, const Tile& tile, const Part& part, int halo_x) {
    const int pair = 2 * (threadIdx.x % 4);
    const int from_x = window<CAUSAL_X>(params.axes[2], tile.x.first + part.x, tile.x.length).start;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int x = row_x(part, i);
      const bool is_there = tile.x.first + x < tile.x.length;
      const Window along_x = window<CAUSAL_X>(params.axes[2], tile.x.first + x, tile.x.length);
      const int first = along_x.start - from_x, count = along_x.end - along_x.start;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int column = FOLDED && pair + e < first ? pair + e + 8 : pair + e;
        is_second[i][e] = column >= 8;
        slots[i][e] = ((row_y(part, i) * TILE_X + x) * HEADS + part.h) * SLOTS + column - first;
#pragma unroll
        for (int c = 0; c < BLOCKS; c++) is_seen[i][c][e] = is_there && (u32)(column + 8 * c - first) < (u32)count;
#if HAS_BIAS
        entries[i][e] = from_x + column - tile.x.first - x + KERNEL_X - 1;
#endif
      }
    }
    const int x = from_x - halo_x + threadIdx.x % 32 / 4;
#pragma unroll
    for (int k = 0; k < BLOCKS_OF_32; k++) tokens[k] = place_of(x, part.h * 2 * DIM + 64 * k + 16 * (threadIdx.x % 4));
  }
};

// The products of one part, into its slots; `line` is where the first line of the part is in the ring, `from_y` which one it is.
DEVICE void multiply(const Params& params, const Tile& tile, const Part& part, const Columns& columns, u32 line, int from_y, int stage, const Queries& a,
                     const u16* bias) {
  u16* slots[2][2];
  Lines lines[2][BLOCKS][2];
#if HAS_BIAS
  const u16* entries[2][2];
#endif
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int y = tile.y.first + row_y(part, i);
    const Window along_y = window<CAUSAL_Y>(params.axes[1], y, tile.y.length);
    const int first = along_y.start - from_y, count = y < tile.y.length ? along_y.end - along_y.start : 0;
    const Lines seen = (((Lines)1 << count) - 1) << first;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      slots[i][e] = (u16*)memory + opaque(stage + columns.slots[i][e] - first * KERNEL_X);
#pragma unroll
      for (int c = 0; c < BLOCKS; c++) lines[i][c][e] = columns.is_seen[i][c][e] ? seen : 0;
#if HAS_BIAS
      entries[i][e] = bias + (from_y - y + KERNEL_Y - 1) * (2 * KERNEL_X - 1) + columns.entries[i][e];
#endif
    }
  }
#pragma unroll(SPAN_X <= 16 && SPAN_Y <= 16 ? SPAN_Y : 1)
  for (int r = 0; r < SPAN_Y; r++) {
    float sums[SPAN_X / 8][4] = {};
    const u32 at = in_ring<RING * RING_LINE>(line + r * RING_LINE);
#pragma unroll
    for (int c = 0; c < SPAN_X / 8; c++) {
#pragma unroll
      for (int k = 0; k < BLOCKS_OF_32; k++) {
        const uint4 b = *(const uint4*)(memory + at + columns.tokens[k] + 8 * c * TOKEN);
        mma(sums[c], a[2 * k], b.x, b.y);
        mma(sums[c], a[2 * k + 1], b.z, b.w);
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
          const float sum = FOLDED && columns.is_second[i][e] ? sums[SPAN_X / 8 - 1][2 * i + e] : sums[c][2 * i + e];
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

// Stores a tile, where lines of it are without gaps in whole vectors.
struct Writer {
  u16* line;                         // of the strip's line 0 in global memory
  int first, count, words;           // lines of the tile, words of each

  DEVICE void store(const Params& params, const Tile& tile, u8* stage) const {
    if (!TOGETHER) {
      const Halo box = {tile.y.first, tile.x.first, tile.y.there(TILE_Y), tile.x.there(TILE_X)};
      move_weights<TILE_Y, TILE_X, true>(params, tile, box, stage, tile.z.first, tile.head, 0);
      return;
    }
    constexpr int PIECE = 2 * SLOTS * TILE_X * HEADS, TURNS = (PIECE / WORD + 31) / 32;
    const int step = (int)params.axes[1].dilation.value * params.axes[2].length * params.heads * SLOTS;
#pragma unroll 1
    for (int y = threadIdx.x / 32; y < count; y += WARPS) {
      const int lane = threadIdx.x % 32;
      Word* const to = (Word*)(line + (i64)(first + y) * step) + lane;
      const Word* const from = (const Word*)(stage + y * PIECE) + lane;
#pragma unroll(TURNS <= 8 ? TURNS : 4)
      for (int turn = 0; turn < TURNS; turn++) {
        if (lane + 32 * turn < words) to[32 * turn] = from[32 * turn];
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) unfused_dots(const __grid_constant__ Params params) {
  const Part part(threadIdx.x / 32);
  const auto start = [&](const Tile& tile, int y) { return window<CAUSAL_Y>(params.axes[1], y, tile.y.length).start; };
  HaloLines<HALO_X, RING_LINE> lines;
  Columns columns;
  Reader reader;
  Writer writer;
  u16* corner = nullptr;
  Tile tile, before;
  Queries queries;
  Loaded loaded_queries;
  int origin = 0, loaded = 0, stage = 0;
  bool has_before = false;
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
        reader.aim(params, tile, part);
        corner = params.weights + (row_at(params, tile, tile.z.first, 0, tile.x.first) + tile.head) * SLOTS;
        lines.aim(params, tile, tokens_of(params, tile), params.token_strides, tile.z.first, halo_x, count, [&](int h) { return (tile.head + h) / GROUP; });
        origin = start(tile, tile.y.first), loaded = start(tile, tile.y.first + TILE_Y - BAND_Y) + SPAN_Y;
        // All have multiplied the last tile of the strip before.
        __syncthreads();
        lines.load(address_of_shared(memory), origin, loaded, origin);
        reader.load(tile, part, loaded_queries);
      }
    }
    if (tile.is_empty()) continue;
    arrange(queries, loaded_queries);
    wait_for_copies();
    __syncthreads();
    Tile next = tile;
    next.y.first += TILE_Y;
    if (steps.number + 1 < steps.end && !next.is_empty()) {
      const int end = start(tile, next.y.first + TILE_Y - BAND_Y) + SPAN_Y;
      lines.load(address_of_shared(memory), loaded, end, origin);
      reader.load(next, part, loaded_queries);
      loaded = end;
    }
    if (has_before) writer.store(params, before, memory + STAGE + (stage ^ 1) * STAGE_BYTES);
    const int to = (STAGE + stage * STAGE_BYTES) / 2;
    if (CAUSAL_Y || CAUSAL_X) {
      const u16 hidden = (u16)pack(params.hidden, 0.f);
      for (int i = threadIdx.x; i < TILE_Y * TILE_X * HEADS * SLOTS; i += THREADS) ((u16*)memory)[to + i] = hidden;
      __syncthreads();
    }
    if (part.is_in(tile)) {
      const int from_y = start(tile, tile.y.first + part.y);
      const int along_z = KERNEL_Z - 1;
      const int table = ((tile.head + part.h) * (2 * KERNEL_Z - 1) + along_z) * (2 * KERNEL_Y - 1) * (2 * KERNEL_X - 1);
      multiply(params, tile, part, columns, (u32)(from_y - origin) % RING * RING_LINE, from_y, to, queries, params.bias + table);
    }
    before = tile, has_before = true;
    writer = {corner, tile.y.first, tile.y.there(TILE_Y), tile.x.there(TILE_X) * HEADS * SLOTS / (WORD / 2)};
    stage ^= 1;
    tile = next;
  }
  __syncthreads();
  if (has_before) writer.store(params, before, memory + STAGE + (stage ^ 1) * STAGE_BYTES);
}
