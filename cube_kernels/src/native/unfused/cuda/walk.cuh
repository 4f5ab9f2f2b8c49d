// What kernels share that go along the slower axis of a plane: tiles of a strip follow each other, the halo's lines lie in a ring, and those that
// the next tile needs besides are copied while a tile is multiplied. A warp has one part of each tile.
//
// Compile-time parameters besides: RING (lines of shared memory: those of a tile and of what the next one needs besides), WALK_WIDE (whether a
// lane reads 16 bytes of a vector by itself, and not a warp whole matrices).

static_assert(KERNEL_Z == 1 && PARTS == WARPS, "");

// Where columns of a strip's tiles are in shared memory, of all heads: 8 neighbors' 16 bytes lie in different banks, or 2 neighbors' 64.
#if WALK_WIDE
constexpr int TOKEN = 2 * DIM * HEADS, SWIZZLE = TOKEN % 128 ? 0 : 64;
#else
constexpr int TOKEN = 2 * DIM * HEADS + 16, SWIZZLE = 0;
#endif
constexpr int RING_LINE = HALO_X * TOKEN;

DEVICE int place_of(int x, int byte) { return x * TOKEN + (byte ^ (x % 2 * SWIZZLE)); }

// The steps of a CTA, tiles in the order of their numbers: those of a strip follow each other.
struct Steps {
  int number, end;

  DEVICE explicit Steps(const Params& params) {
    const int cta = blockIdx.x;
    number = cta * params.steps + min_(cta, params.longer);
    end = number + params.steps + (cta < params.longer ? 1 : 0);
  }
};

// Takes the tile's place along the strip from a number, and leaves the strip's; `y` begins there.
DEVICE Tile strip_of(const Params& params, int number) {
  Tile tile;
  tile.y.first = split(number, params.axes[1].tiles) * TILE_Y;
  tile.head = split(number, params.parts) * HEADS;
  tile.x = side(params.axes[2], number, TILE_X);
  tile.y.member = DILATED ? split(number, params.axes[1].dilation) : 0;
  tile.y.length = members(params.axes[1], tile.y.member);
  int position = DEPTH ? split(number, params.positions) : 0;
  tile.z.member = DEPTH && DILATED ? split(position, params.axes[0].dilation) : 0;
  tile.z.first = position;
  tile.z.length = members(params.axes[0], tile.z.member);
  tile.batch = number;
  return tile;
}

// Copies of lines of a strip's halo, columns from `x` on.
template <int WIDTH, int STEP> struct HaloLines {
  static constexpr int OF_TOKEN = HEADS * VECTORS, COUNT = WIDTH * OF_TOKEN, TURNS = (COUNT + 31) / 32;
  // Whether a lane has the same vector of all its tokens, which are as far from each other as is known.
  static constexpr bool IS_REGULAR = 32 % OF_TOKEN == 0 && (32 / OF_TOKEN % 2 == 0 || !SWIZZLE);
  static constexpr int STRIDE = 32 / OF_TOKEN;
  const u16* sample;
  int corner, step, length, step_x;  // where position 0 is, and from one to the next
  int offsets[IS_REGULAR ? 1 : TURNS], places[IS_REGULAR ? 1 : TURNS];
  int x, count;

  template <class Head>
  DEVICE void aim(const Params& params, const Tile& tile, const u16* from, const int (&strides)[4], int z, int first_x, int count_x, Head head) {
    step_x = strides[2] * (int)params.axes[2].dilation.value;
    x = threadIdx.x % 32 / OF_TOKEN, count = count_x;
#pragma unroll
    for (int turn = 0; turn < (IS_REGULAR ? 1 : TURNS); turn++) {
      const int i = threadIdx.x % 32 + 32 * turn, vector = i % VECTORS, h = i / VECTORS % HEADS, at = i / OF_TOKEN;
      offsets[turn] = opaque(at * step_x + head(h) * strides[3] + 8 * vector);
      places[turn] = opaque(place_of(at, h * 2 * DIM + 16 * vector));
    }
    sample = from;
    corner = vector_at(params, tile, strides, z, 0, first_x, 0);
    step = strides[1] * (int)params.axes[1].dilation.value;
    length = tile.y.length;
  }

  // Lines first..end, zeros for those behind the last one; line `origin` has the ring's first place.
  DEVICE void load(u32 ring, int first, int end, int origin) const {
#pragma unroll 1
    for (int y = first + (int)threadIdx.x / 32; y < end; y += WARPS) {
      const int line = corner + y * step;
      const u32 to = ring + (u32)(y - origin) % RING * STEP;
#pragma unroll
      for (int turn = 0; turn < TURNS; turn++) {
        const int i = threadIdx.x % 32 + 32 * turn;
        if (COUNT % 32 && i >= COUNT) continue;
        if (IS_REGULAR) {
          const int at = line + offsets[0] + turn * STRIDE * step_x;
          copy_or_zero(to + places[0] + turn * STRIDE * TOKEN, sample + at, y < length && x + turn * STRIDE < count);
        } else {
          copy_or_zero(to + places[turn], sample + (line + offsets[turn]), y < length && i / OF_TOKEN < count);
        }
      }
    }
  }
};

// The offset one line further in a ring.
template <int BYTES> DEVICE u32 in_ring(u32 offset) { return offset < offset - BYTES ? offset : offset - BYTES; }

// Rows of a part's results, `[.., heads, DIM]` of a sample, by way of shared memory: 16 bytes a lane. A barrier has to come before the next. Where rows are MIXED, of four
// neighbors two have the later line first.
constexpr int RESULT = 2 * DIM + 16;
template <bool MIXED>
DEVICE void store_part(const Params& params, const Tile& tile, const Part& part, const float (&sums)[DIM / 8][4], u8* results, u16* sample, const int (&strides)[4]) {
  const int lane = threadIdx.x % 32;
  u8* const rows = results + threadIdx.x / 32 * 16 * RESULT;
#pragma unroll
  for (int i = 0; i < 2; i++) {
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
      *(u32*)(rows + (lane / 4 + 8 * i) * RESULT + 16 * n + 4 * (lane % 4)) = pack(sums[n][2 * i] * params.scale, sums[n][2 * i + 1] * params.scale);
    }
  }
  __syncwarp();
#pragma unroll
  for (int v = lane; v < 16 * VECTORS; v += 32) {
    const int row = v / VECTORS, vector = v % VECTORS, half = row / 8, along = row % 8;
    const int y = tile.y.first + part.y + (BAND_X == 8 ? (MIXED ? half ^ along / 2 % 2 : half) : 0), x = tile.x.first + part.x + (BAND_X == 8 ? along : row);
    if (y >= tile.y.length || x >= tile.x.length) continue;
    u16* const to = sample + vector_at(params, tile, strides, tile.z.first, y, x, tile.head + part.h) + 8 * vector;
    *(uint4*)to = *(const uint4*)(rows + row * RESULT + 16 * vector);
  }
}

// Copies of lines of weights, WIDTH columns from `x` on.
template <int WIDTH> struct Weights {
  const u16* corner;                 // line 0
  int step, count;

  DEVICE void aim(const Params& params, const Tile& tile, int x, int count_x) {
    corner = params.weights + (row_at(params, tile, tile.z.first, 0, x) + tile.head) * ROW_PITCH;
    step = (int)params.axes[1].dilation.value * params.axes[2].length * params.heads * ROW_PITCH;
    count = count_x * HEADS;
  }
  // Bytes from the begin of a line's first vector to the line.
  DEVICE int shift(int y) const { return SHIFTED ? (int)((u64)(corner + (i64)y * step) & 15) : 0; }

  // Lines first..end, each to a place of shared memory.
  template <class Place> DEVICE void load(const Params& params, int first, int end, Place place) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int y = first + (int)threadIdx.x / 32; y < end; y += WARPS) {
      const u16* const line = corner + (i64)y * step;
      const u32 to = address_of_shared(memory) + place(y);
#if PITCHED
      // A lane has the same vector of each of its rows, as in `move_weights`.
      constexpr int COUNT = (SLOTS + 7) / 8, LANES = COUNT > 16 ? 32 : COUNT > 8 ? 16 : COUNT > 4 ? 8 : COUNT > 2 ? 4 : COUNT;
      constexpr int ROWS = WIDTH * HEADS, AT_ONCE = 32 / LANES;
      const int vector = lane % LANES, step_x = (int)params.axes[2].dilation.value * params.heads * ROW_PITCH;
#pragma unroll 8
      for (int i = lane / LANES; i < ROWS; i += AT_ONCE) {
        const u16* const from = line + (TOGETHER ? i * ROW_PITCH : i / HEADS * step_x + i % HEADS * ROW_PITCH) + 8 * vector;
#pragma unroll
        for (int v = 0; v < COUNT; v += LANES) {
          if (i < count && vector + v < COUNT) copy_word<16>(to + 2 * i * ROW + 16 * (vector + v), from + 8 * v);
        }
      }
#elif SHIFTED
      // Whole vectors, with what lies in front of the line and behind it in the first and the last one; nothing is read outside of the tensor.
      const int before = shift(y), vectors = (before + 2 * count * SLOTS + 15) / 16;
      const u8* const from = (const u8*)line - before;
      if (from >= (const u8*)params.weights && from + 16 * vectors <= (const u8*)(params.weights + params.elements)) {
#pragma unroll 4
        for (int i = lane; i < vectors; i += 32) copy_word<16>(to + 16 * i, from + 16 * i);
      } else {
#pragma unroll 1
        for (int i = lane; i < count * SLOTS; i += 32) *(u16*)(memory + place(y) + before + 2 * i) = line[i];
      }
#else
      static_assert(TOGETHER || WIDTH == 0, "");
      constexpr int PIECE = 2 * SLOTS * WIDTH * HEADS, TURNS = (PIECE / WORD + 31) / 32;
      const int words = count * SLOTS / (WORD / 2);
#pragma unroll(TURNS <= 8 ? TURNS : 4)
      for (int turn = 0; turn < TURNS; turn++) {
        const int i = lane + 32 * turn;
        if (i < words) move_word<false>((Word*)line + i, (Word*)(memory + place(y)) + i);
      }
#endif
    }
  }
};
