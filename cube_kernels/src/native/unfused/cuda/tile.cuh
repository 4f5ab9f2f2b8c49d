// What the kernels of the unfused operators share: where a CTA's tile is, tokens and weights between global and shared memory.
//
// A CTA owns a tile of TILE_Y x TILE_X tokens of one dilation group of the two fastest axes, at one position of the slowest, of HEADS
// heads. Its counterparts, a halo of HALO_Y x HALO_X tokens, lie in shared memory. A warp owns a part of 16 tokens, BAND_Y x BAND_X of the
// tile, whose counterparts are SPAN_Y x SPAN_X of the halo: 16 rows of a matrix, and its columns in blocks of 8 along the
// fastest axis.
//
// Compile-time parameters besides: BF16, DIM, KERNEL_Z, KERNEL_Y, KERNEL_X, CAUSAL_Z, CAUSAL_Y, CAUSAL_X, STRIDED, GROUP (heads of rows that
// share one of tokens), THREADS, WORD (bytes in which weights move), TOGETHER (whether a line of the tile's weights is without gaps).

// n / value for 0 <= n < 2^31.
struct Divisor { u32 value, magic, shift, unused; };

DEVICE int divide(int n, const Divisor& by) { return (int)((multiply_high((u32)n, by.magic) + (u32)n) >> by.shift); }

// Takes the remainder of n, and leaves the quotient in it.
DEVICE int split(int& n, const Divisor& by) {
  const int quotient = divide(n, by), remainder = n - quotient * (int)by.value;
  n = quotient;
  return remainder;
}

struct Axis {
  int length, kernel, stride, unused;
  Divisor dilation, tiles;
};

struct Params {
  u16 *weights, *rows, *tokens;      // the result is one of them
  const u16* bias;                   // [heads, offsets], or null
  i64 row_strides[5], token_strides[5];  // elements: batch, z, y, x, head
  Axis axes[3];
  Divisor parts, positions;          // groups of HEADS heads; positions along the slowest axis
  int heads;                         // of rows
  float scale, hidden;
  int unused;
};

constexpr int BAND_Y = 16 / BAND_X, BANDS_X = TILE_X / BAND_X, BANDS = TILE_Y / BAND_Y * BANDS_X;
constexpr int WARPS = THREADS / 32, SLOTS = KERNEL_Y * KERNEL_X, VECTORS = DIM / 8;
// An odd number of 16 bytes from one token to the next: 8 neighbors lie in different banks.
constexpr int PITCH = 2 * DIM + 16;

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
  DEVICE int place(const Axis& axis, int position) const { return position * (int)axis.dilation.value + member; }
};

struct Tile {
  Side z, y, x;                      // of z the one position
  int batch, head;                   // the first of HEADS

  DEVICE bool is_empty() const { return y.first >= y.length || x.first >= x.length; }
};

DEVICE int members(const Axis& axis, int member) {
  return divide(axis.length - member + (int)axis.dilation.value - 1, axis.dilation);
}

DEVICE Side side(const Axis& axis, int& number, int tile) {
  Side s;
  s.first = split(number, axis.tiles) * tile;
  s.member = split(number, axis.dilation);
  s.length = members(axis, s.member);
  return s;
}

DEVICE Tile tile_of(const Params& params) {
  int number = blockIdx.x;
  Tile tile;
  tile.head = split(number, params.parts) * HEADS;
  tile.x = side(params.axes[2], number, TILE_X);
  tile.y = side(params.axes[1], number, TILE_Y);
  int position = split(number, params.positions);
  tile.z.member = split(position, params.axes[0].dilation);
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

// The vector of a token, by its positions.
DEVICE i64 vector_at(const Params& params, const Tile& tile, const i64 (&strides)[5], int z, int y, int x, int head) {
  return tile.batch * strides[0] + tile.z.place(params.axes[0], z) * strides[1] + tile.y.place(params.axes[1], y) * strides[2] +
         tile.x.place(params.axes[2], x) * strides[3] + head * strides[4];
}

// Vectors of the halo, of the tokens at position z; zeros in places behind it. `head(h)` is the head of plane h.
template <class Head>
DEVICE void load_halo(const Params& params, const Tile& tile, const Halo& halo, const u16* from, const i64 (&strides)[5], u8* to, int z, Head head) {
  const u16* const corner = from + vector_at(params, tile, strides, z, halo.y, halo.x, 0);
  const i64 step_y = strides[2] * params.axes[1].dilation.value, step_x = strides[3] * params.axes[2].dilation.value;
  constexpr int COUNT = HALO_Y * HALO_X * HEADS * VECTORS;
#pragma unroll 4
  for (int i = threadIdx.x; i < COUNT; i += THREADS) {
    const int vector = i % VECTORS, h = i / VECTORS % HEADS, x = i / (VECTORS * HEADS) % HALO_X, y = i / (VECTORS * HEADS * HALO_X);
    uint4 value = make_uint4(0, 0, 0, 0);
    if (y < halo.count_y && x < halo.count_x) value = *(const uint4*)(corner + y * step_y + x * step_x + head(h) * strides[4] + 8 * vector);
    *(uint4*)(to + ((h * HALO_Y + y) * HALO_X + x) * PITCH + 16 * vector) = value;
  }
}

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

// Moves the weights of a box of EXTENT_Y x EXTENT_X queries, of which there are `count`, in the slots of one position along the slowest
// axis: `[y, x, HEADS, SLOTS]` in shared memory, where a line of the box takes whole words. `head` is the first one.
template <int EXTENT_Y, int EXTENT_X, bool Store>
DEVICE void move_weights(const Params& params, const Tile& tile, const Halo& box, u8* stage, int z, int head, int plane) {
  constexpr int PER_QUERY = KERNEL_Z > 1 ? HEADS : 1;
  constexpr int PIECES = TOGETHER ? EXTENT_Y : EXTENT_Y * EXTENT_X * PER_QUERY;
  constexpr int PIECE = 2 * SLOTS * (TOGETHER ? EXTENT_X * HEADS : HEADS / PER_QUERY), WORDS = PIECE / WORD;
  static_assert(PIECE % WORD == 0, "");
#pragma unroll 4
  for (int i = threadIdx.x; i < PIECES * WORDS; i += THREADS) {
    const int piece = i / WORDS, word = i % WORDS;
    const int y = TOGETHER ? piece : piece / (EXTENT_X * PER_QUERY), x = TOGETHER ? 0 : piece / PER_QUERY % EXTENT_X;
    const int h = TOGETHER ? 0 : piece % PER_QUERY;
    const bool is_there = y < box.count_y && (TOGETHER ? word * WORD < box.count_x * HEADS * SLOTS * 2 : x < box.count_x);
    if (!is_there) continue;
    const i64 row = row_at(params, tile, z, box.y + y, box.x + x) + head + h;
    Word* const global = (Word*)(params.weights + (row * KERNEL_Z + plane) * SLOTS) + word;
    Word* const shared = (Word*)(stage + piece * PIECE) + word;
    if (Store) *global = *shared;
    else *shared = *global;
  }
}

// A row of a warp's matrix: its token, and where its counterparts begin among those of the part, and how many there are.
struct Row {
  int y, x;                          // in the tile
  int first_y, count_y, first_x, count_x;
  bool is_there;
};

// Of 16 tokens from `y` and `x` of the tile on, whose counterparts begin at `from_y` and `from_x`; those of one that is not there are none.
template <bool ToKeys> DEVICE Row row_of(const Params& params, const Tile& tile, int number, int y, int x, int from_y, int from_x) {
  Row row;
  row.y = y + number / BAND_X, row.x = x + number % BAND_X;
  const int at_y = tile.y.first + row.y, at_x = tile.x.first + row.x;
  row.is_there = at_y < tile.y.length && at_x < tile.x.length;
  if (ToKeys) {
    const Window along_y = window<CAUSAL_Y>(params.axes[1], at_y, tile.y.length), along_x = window<CAUSAL_X>(params.axes[2], at_x, tile.x.length);
    row.first_y = along_y.start - from_y, row.count_y = along_y.end - along_y.start;
    row.first_x = along_x.start - from_x, row.count_x = along_x.end - along_x.start;
    if (!row.is_there) row.count_y = 0;
  }
  return row;
}

// Rows of results, `[.., heads, DIM]` in global memory, from the sums of a warp.
DEVICE void store_row(u16* to, const float (&sums)[DIM / 8][4], int half, float scale) {
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int n = 0; n < DIM / 8; n++) *(u32*)(to + 8 * n + column) = pack(sums[n][2 * half] * scale, sums[n][2 * half + 1] * scale);
}

// Whether a sum of a row that is there is no number, in any lane. Zeros in place of weights that a row has not make it one where a vector
// is not finite.
DEVICE bool is_nan(float x) { return (__float_as_uint(x) & 0x7fffffff) > 0x7f800000; }

DEVICE bool has_nan(const float (&sums)[DIM / 8][4], bool first, bool second) {
  bool found = false;
#pragma unroll
  for (int n = 0; n < DIM / 8; n++) {
    found |= first && (is_nan(sums[n][0]) || is_nan(sums[n][1]));
    found |= second && (is_nan(sums[n][2]) || is_nan(sums[n][3]));
  }
  return __any_sync(~0u, found);
}
