// What the kernels of the unfused operators share: where a CTA's tile is, tokens and weights between global and shared memory.
//
// A CTA owns a tile of TILE_Y x TILE_X tokens of one dilation group of the two fastest axes, at one position of the slowest, of HEADS
// heads. Its counterparts, a halo of HALO_Y x HALO_X tokens, lie in shared memory. A warp owns a part of 16 tokens, BAND_Y x BAND_X of the
// tile, whose counterparts are SPAN_Y x SPAN_X of the halo: 16 rows of a matrix, and its columns in blocks of 8 along the
// fastest axis. Where two blocks hold a row of windows, FOLDED, a column and the one 8 columns on are never both in a window, so that
// one slot is handled for both.
//
// Compile-time parameters besides: BF16, DIM, KERNEL_Z, KERNEL_Y, KERNEL_X, CAUSAL_Z, CAUSAL_Y, CAUSAL_X, STRIDED, GROUP (heads of rows that
// share one of tokens), DILATED, DEPTH (whether there is a slowest axis), THREADS, CTAS (of a multiprocessor), WORD (bytes in which weights move), TOGETHER (whether a line of the tile's weights is without gaps), SHIFTED (whether it moves in
// vectors of 16 bytes, wherever it begins, and is as far from such a vector's beginning in shared memory), ROW_PITCH (elements from one row of weights to the next),
// ROW (the same of one position along the slowest axis in shared memory), PITCHED (whether there are gaps between rows of weights,
// each of which begins at 16 bytes).

struct Axis {
  int length, kernel, stride, unused;
  Divisor dilation, tiles;
};

struct Params {
  u16 *weights, *rows, *tokens;      // the result is one of them
  const u16* bias;                   // [heads, offsets], or null
  i64 row_samples, token_samples;    // elements from one sample to the next
  int row_strides[4], token_strides[4];  // elements: z, y, x, head
  Axis axes[3];
  Divisor parts, positions;          // groups of HEADS heads; positions along the slowest axis
  i64 elements;                      // weights
  int heads;                         // of rows
  float scale, hidden;
  int steps, longer, unused;         // of CTAs that go along strips: tiles of one, and how many have another one
};

constexpr int BAND_Y = 16 / BAND_X, BANDS_X = TILE_X / BAND_X, BANDS = TILE_Y / BAND_Y * BANDS_X;
constexpr int PARTS = BANDS * HEADS, WARPS = THREADS / 32, SLOTS = KERNEL_Y * KERNEL_X, VECTORS = DIM / 8;
// An odd number of 16 bytes from one token to the next: 8 neighbors lie in different banks.
constexpr int PITCH = 2 * DIM + 16;
constexpr bool FOLDED = SPAN_X == 16 && KERNEL_X <= 8;
// Blocks whose slots are handled one by one.
constexpr int BLOCKS = FOLDED ? 1 : SPAN_X / 8;
#if SPAN_Y < 32
typedef u32 Lines;
#else
typedef u64 Lines;
#endif

extern __shared__ __align__(1024) u8 memory[];

template <bool Causal> DEVICE Window window(const Axis& axis, int position, int length) {
  return window_of_query<Causal, STRIDED, false>(axis, 0, position, length, length);
}
template <bool Causal> DEVICE Window visitors(const Axis& axis, int position, int length) {
  return window_of_key<Causal, STRIDED, false>(axis, 0, position, length, length);
}

// One axis of a tile: members of a dilation group from `first` on.
struct Side {
  int first, member, length;

  DEVICE int there(int tile) const { return min_(tile, length - first); }
  DEVICE int place(const Axis& axis, int position) const { return DILATED ? position * (int)axis.dilation.value + member : position; }
};

struct Tile {
  Side z, y, x;                      // of z the one position
  int batch, head;                   // the first of HEADS

  DEVICE bool is_empty() const { return y.first >= y.length || x.first >= x.length; }
};

DEVICE int members(const Axis& axis, int member) {
  if (!DILATED) return axis.length;
  return divide(axis.length - member + (int)axis.dilation.value - 1, axis.dilation);
}

DEVICE Side side(const Axis& axis, int& number, int tile) {
  Side s;
  s.first = split(number, axis.tiles) * tile;
  s.member = DILATED ? split(number, axis.dilation) : 0;
  s.length = members(axis, s.member);
  return s;
}

DEVICE Tile tile_of(const Params& params) {
  int number = blockIdx.x;
  Tile tile;
  tile.head = split(number, params.parts) * HEADS;
  tile.x = side(params.axes[2], number, TILE_X);
  tile.y = side(params.axes[1], number, TILE_Y);
  int position = DEPTH ? split(number, params.positions) : 0;
  tile.z.member = DEPTH && DILATED ? split(position, params.axes[0].dilation) : 0;
  tile.z.first = position;
  tile.z.length = members(params.axes[0], tile.z.member);
  tile.batch = number;
  return tile;
}

// What lies in shared memory: positions from `y` and `x` on.
struct Halo {
  int y, x, count_y, count_x;
};

template <bool ToKeys> DEVICE Halo halo_of(const Params& params, const Tile& tile) {
  const int last_y = tile.y.first + tile.y.there(TILE_Y) - 1, last_x = tile.x.first + tile.x.there(TILE_X) - 1;
  Window y[2], x[2];
  if (ToKeys) {
    y[0] = window<CAUSAL_Y>(params.axes[1], tile.y.first, tile.y.length), y[1] = window<CAUSAL_Y>(params.axes[1], last_y, tile.y.length);
    x[0] = window<CAUSAL_X>(params.axes[2], tile.x.first, tile.x.length), x[1] = window<CAUSAL_X>(params.axes[2], last_x, tile.x.length);
  } else {
    y[0] = visitors<CAUSAL_Y>(params.axes[1], tile.y.first, tile.y.length), y[1] = visitors<CAUSAL_Y>(params.axes[1], last_y, tile.y.length);
    x[0] = visitors<CAUSAL_X>(params.axes[2], tile.x.first, tile.x.length), x[1] = visitors<CAUSAL_X>(params.axes[2], last_x, tile.x.length);
  }
  return {y[0].start, x[0].start, y[1].end - y[0].start, x[1].end - x[0].start};
}

// Where the vector of a token is among those of its sample, by its positions.
DEVICE int vector_at(const Params& params, const Tile& tile, const int (&strides)[4], int z, int y, int x, int head) {
  return tile.z.place(params.axes[0], z) * strides[0] + tile.y.place(params.axes[1], y) * strides[1] + tile.x.place(params.axes[2], x) * strides[2] +
         head * strides[3];
}
DEVICE u16* rows_of(const Params& params, const Tile& tile) { return params.rows + tile.batch * params.row_samples; }
DEVICE u16* tokens_of(const Params& params, const Tile& tile) { return params.tokens + tile.batch * params.token_samples; }

// Copies vectors of the halo, of the tokens at position z of a sample; zeros to places behind it. `head(h)` is the head of plane h. A warp
// takes a line at a time.
template <class Head>
DEVICE void load_halo(const Params& params, const Tile& tile, const Halo& halo, const u16* sample, const int (&strides)[4], u8* to, int z, Head head) {
  constexpr int COUNT = HALO_X * HEADS * VECTORS, TURNS = (COUNT + 31) / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int step_x = strides[2] * (int)params.axes[2].dilation.value, step_y = WARPS * strides[1] * (int)params.axes[1].dilation.value;
  // Where a lane's vectors are in each line.
  int offsets[TURNS], places[TURNS];
  bool is_in[TURNS];
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const int i = lane + 32 * turn, vector = i % VECTORS, h = i / VECTORS % HEADS, x = i / (VECTORS * HEADS);
    is_in[turn] = x < halo.count_x;
    offsets[turn] = opaque(x * step_x + head(h) * strides[3] + 8 * vector);
    places[turn] = opaque(h * HALO_Y * HALO_X * PITCH + x * PITCH + 16 * vector);
  }
  const u16* line = sample + vector_at(params, tile, strides, z, halo.y + warp, halo.x, 0);
  u32 shared = address_of_shared(to) + warp * HALO_X * PITCH;
#pragma unroll 2
  for (int y = warp; y < HALO_Y; y += WARPS, line += step_y, shared += WARPS * HALO_X * PITCH) {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      if (COUNT % 32 == 0 || lane + 32 * turn < COUNT) copy_or_zero(shared + places[turn], line + offsets[turn], y < halo.count_y && is_in[turn]);
    }
  }
}

// Bytes of a line of the halo's weights.
#if SHIFTED
constexpr int LINE = (2 * HALO_X * HEADS * ROW + 15) / 16 * 16 + 16;
#else
constexpr int LINE = 2 * HALO_X * HEADS * ROW;
#endif

#if WORD == 16
typedef uint4 Word;
#elif WORD == 8
typedef uint2 Word;
#elif WORD == 4
typedef u32 Word;
#else
typedef u16 Word;
#endif

// Rows of weights in front of that of the query at positions y and x, of the tile's sample.
DEVICE i64 row_at(const Params& params, const Tile& tile, int z, int y, int x) {
  const int line = (tile.batch * params.axes[0].length + tile.z.place(params.axes[0], z)) * params.axes[1].length + tile.y.place(params.axes[1], y);
  return ((i64)line * params.axes[2].length + tile.x.place(params.axes[2], x)) * params.heads;
}

template <bool Store> DEVICE void move_word(Word* global, Word* shared) {
  if (Store) *global = *shared;
#if WORD >= 4
  else copy_word<WORD>(address_of_shared(shared), global);
#else
  else *shared = *global;
#endif
}

// Moves the weights of a box of EXTENT_Y x EXTENT_X queries, of which there are `count`, in the slots of one position along the slowest
// axis: `[y, x, HEADS, ROW]` in shared memory, where a line of the box takes whole words. `head` is the first one.
#if PITCHED
// The same of rows with gaps between them, which are read. A lane has the same vector of each of its rows, and a vector is left to as many
// lanes as a power of two has more than a row has vectors, so that rows are steps apart that are known.
template <int EXTENT_Y, int EXTENT_X, bool Store>
DEVICE void move_weights(const Params& params, const Tile& tile, const Halo& box, u8* stage, int z, int head, int) {
  static_assert(!Store && KERNEL_Z == 1, "");
  constexpr int COUNT = (SLOTS + 7) / 8, LANES = COUNT > 16 ? 32 : COUNT > 8 ? 16 : COUNT > 4 ? 8 : COUNT > 2 ? 4 : COUNT;
  constexpr int ROWS = EXTENT_X * HEADS, AT_ONCE = 32 / LANES;
  const int lane = threadIdx.x % 32, vector = lane % LANES, rows = box.count_x * HEADS;
  const int step_x = (int)params.axes[2].dilation.value * params.heads * ROW_PITCH;
  const int step_y = (int)params.axes[1].dilation.value * params.axes[2].length * params.heads * ROW_PITCH;
  const u16* const corner = params.weights + (row_at(params, tile, z, box.y, box.x) + head) * ROW_PITCH + 8 * vector;
  const u32 shared = address_of_shared(stage) + 16 * vector;
  for (int y = threadIdx.x / 32; y < box.count_y; y += WARPS) {
    const u16* const line = corner + (i64)y * step_y;
    const u32 to = shared + y * (2 * ROWS * ROW);
#pragma unroll 8
    for (int i = lane / LANES; i < ROWS; i += AT_ONCE) {
      const u16* const from = line + (TOGETHER ? i * ROW_PITCH : i / HEADS * step_x + i % HEADS * ROW_PITCH);
#pragma unroll
      for (int v = 0; v < COUNT; v += LANES) {
        if (i < rows && vector + v < COUNT) copy_word<16>(to + 2 * i * ROW + 16 * v, from + 8 * v);
      }
    }
  }
}
#else
template <int EXTENT_Y, int EXTENT_X, bool Store>
DEVICE void move_weights(const Params& params, const Tile& tile, const Halo& box, u8* stage, int z, int head, int plane) {
  // What lies without gaps: a line, or the heads of a query, or one of them. A warp takes a line at a time, or a thread a word of any.
  constexpr int PER_QUERY = KERNEL_Z > 1 ? HEADS : 1;
  constexpr int PIECE = 2 * SLOTS * (TOGETHER ? EXTENT_X * HEADS : HEADS / PER_QUERY), WORDS = PIECE / WORD;
  static_assert(PIECE % WORD == 0, "");
  const i64 first = (row_at(params, tile, z, box.y, box.x) + head) * KERNEL_Z + plane;
  u16* const corner = params.weights + first * SLOTS;
  const int step_x = (int)params.axes[2].dilation.value * params.heads * KERNEL_Z * SLOTS;
  const int step_y = (int)params.axes[1].dilation.value * params.axes[2].length * params.heads * KERNEL_Z * SLOTS;
  const int lane = threadIdx.x % 32;
#if SHIFTED
  // Whole vectors of a line, with what lies in front of it and behind it in the first and the last one.
  for (int y = threadIdx.x / 32; y < box.count_y; y += WARPS) {
    u16* const line = corner + (i64)y * step_y;
    const int shift = (int)((u64)line & 15), vectors = (shift + 2 * box.count_x * HEADS * SLOTS + 15) / 16;
    const u8* const from = (const u8*)line - shift;
    u8* const to = stage + y * LINE;
    // Nothing is read outside of the tensor.
    const bool is_inside = from >= (const u8*)params.weights && from + 16 * vectors <= (const u8*)(params.weights + params.elements);
    if (is_inside) {
#pragma unroll 4
      for (int i = lane; i < vectors; i += 32) copy_word<16>(address_of_shared(to) + 16 * i, from + 16 * i);
    } else {
#pragma unroll 1
      for (int i = lane; i < box.count_x * HEADS * SLOTS; i += 32) *(u16*)(to + shift + 2 * i) = line[i];
    }
  }
  return;
#endif
  if (TOGETHER) {
    const int words = box.count_x * HEADS * SLOTS / (WORD / 2);
    for (int y = threadIdx.x / 32; y < box.count_y; y += WARPS) {
      Word* const global = (Word*)(corner + (i64)y * step_y);
      Word* const shared = (Word*)(stage + y * PIECE);
#pragma unroll 4
      for (int word = lane; word < words; word += 32) {
        move_word<Store>(global + word, shared + word);
      }
    }
    return;
  }
  constexpr int PIECES = EXTENT_Y * EXTENT_X * PER_QUERY;
#pragma unroll 4
  for (int i = threadIdx.x; i < PIECES * WORDS; i += THREADS) {
    const int piece = i / WORDS, word = i % WORDS;
    const int y = piece / (EXTENT_X * PER_QUERY), x = piece / PER_QUERY % EXTENT_X, h = piece % PER_QUERY;
    if (y >= box.count_y || x >= box.count_x) continue;
    Word* const global = (Word*)(corner + (i64)y * step_y + x * step_x + h * (KERNEL_Z * SLOTS)) + word;
    Word* const shared = (Word*)(stage + piece * PIECE) + word;
    move_word<Store>(global, shared);
  }
}
#endif

// The part of 16 tokens with this number: its head, and where it is in the tile.
struct Part {
  int h, y, x;

  DEVICE explicit Part(int number) : h(number / BANDS), y(number % BANDS / BANDS_X * BAND_Y), x(number % BANDS % BANDS_X * BAND_X) {}
  DEVICE bool is_in(const Tile& tile) const { return tile.y.first + y < tile.y.length && tile.x.first + x < tile.x.length; }
};

// A row of a lane's matrix: its token, by its place in the tile.
struct Row {
  int y, x;
  bool is_there;

  DEVICE Row(const Tile& tile, const Part& part, int i) {
    y = part.y + (BAND_X == 8 ? i : 0), x = part.x + threadIdx.x % 32 / 4 + (BAND_X == 8 ? 0 : 8 * i);
    is_there = tile.y.first + y < tile.y.length && tile.x.first + x < tile.x.length;
  }
};

// What a query of a part sees of the lines and columns of its part's halo, which begins at `from_y` and `from_x`; a query that is not
// there sees nothing.
struct Seen {
  int first_y, count_y, first_x, count_x;

  DEVICE Seen(const Params& params, const Tile& tile, const Row& row, int from_y, int from_x) {
    const Window along_y = window<CAUSAL_Y>(params.axes[1], tile.y.first + row.y, tile.y.length);
    const Window along_x = window<CAUSAL_X>(params.axes[2], tile.x.first + row.x, tile.x.length);
    first_y = along_y.start - from_y, count_y = row.is_there ? along_y.end - along_y.start : 0;
    first_x = along_x.start - from_x, count_x = along_x.end - along_x.start;
  }

  // Of the two columns that share a slot, the one that may be in the window; otherwise the column itself.
  DEVICE int column(int column) const { return FOLDED && column < first_x ? column + 8 : column; }
  DEVICE bool has_column(int column) const { return (u32)(column - first_x) < (u32)count_x; }
  // A bit for each line.
  DEVICE Lines lines() const { return (((Lines)1 << count_y) - 1) << first_y; }
};

// Rows of results, `[.., heads, DIM]` in global memory, from the sums of a warp.
DEVICE void store_row(u16* to, const float (&sums)[DIM / 8][4], int half, float scale) {
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int n = 0; n < DIM / 8; n++) *(u32*)(to + 8 * n + column) = pack(sums[n][2 * half] * scale, sums[n][2 * half + 1] * scale);
}

DEVICE bool is_nan(float x) { return (__float_as_uint(x) & 0x7fffffff) > 0x7f800000; }

// Whether a sum of a row that is there is no number, in any lane. Zeros in place of weights that a row has not make it one where a vector
// is not finite.
DEVICE bool has_nan(const float (&sums)[DIM / 8][4], bool first, bool second) {
  bool found = false;
#pragma unroll
  for (int n = 0; n < DIM / 8; n++) {
    found |= first && (is_nan(sums[n][0]) || is_nan(sums[n][1]));
    found |= second && (is_nan(sums[n][2]) || is_nan(sums[n][3]));
  }
  return __any_sync(~0u, found);
}

DEVICE void zero(float (&sums)[DIM / 8][4]) {
#pragma unroll
  for (int i = 0; i < DIM / 2; i++) sums[i / 4][i % 4] = 0.f;
}

// All bits where bit r of `lines` is set.
DEVICE u32 all_if(Lines lines, int r) { return 0u - (u32)(lines >> r & 1); }

// Adds 16 columns of line r of the halo, whose vectors begin at `block`, to the sums of 16 rows with these weights.
DEVICE void add_products(float (&sums)[DIM / 8][4], const u32 (&weights)[4], u32 block) {
#pragma unroll
  for (int d = 0; d < DIM / 16; d++) {
    u32 b[4];
    load_transposed(b, block + 32 * d);
    mma(sums[2 * d], weights, b[0], b[1]);
    mma(sums[2 * d + 1], weights, b[2], b[3]);
  }
}
