// The gradient of the bias. Each warp adds up the slopes of its rows by their distance from the columns in
// shared memory of its own; the sums of a CTA's warps become a row of memory for each head, see bias.cu. Rows and blocks are
// boxes that are eight wide, or of one axis. Compile-time parameters: SUM_BIAS, SUM_SLOTS, and those of bias.cuh.
//
// Most tiles see their blocks from as far as the tile before. So slopes are added to those of earlier steps first, place by place, in a slot
// of the block, until tiles see theirs otherwise. Then the sums of the slot are added up by distance, and it starts again from zero.
//
// Where windows are not longer than a block, blocks along an axis share a slot: of all places that are a multiple of a block apart a row sees
// one, and slopes of the others are zeros. Which one it is follows from where the row's window begins. Of windows of 7 x 7 all blocks of a tile
// are one slot.
//
// A lane has slopes of two rows, which are neighbors along y, or along z, or eight apart: it adds up those that have the same
// distance. What is left are lines of eight columns for eight rows, x = 0 to 7, which are neighbors along x. Of column c in row x
// the distance is c - x, so that a lane adds up a diagonal that goes on at the line's begin: first where c >= x, then
// those behind; or, of blocks that share a slot, those that are nearer and those that are a block farther.

constexpr bool PAIRS_ALONG_Z = RANK == 3 && ROW_Y == 1;
constexpr int PAIR_AXIS = RANK == 1 ? 2 : PAIRS_ALONG_Z ? 0 : 1;  // along which a lane's rows lie

// Whether blocks along an axis can share slots. Strides aside: of rows that follow each other windows may begin far apart.
DEVICE constexpr bool can_share(int a) { return RANK > 1 && (bias_extent(a) + 1) / 2 + (a == PAIR_AXIS) <= column_extent(a); }
// Slots along an axis for all blocks of a tile: strides aside, rows that follow each other see at most one column more.
DEVICE constexpr int slots_along(int a) { return can_share(a) ? 1 : ((bias_extent(a) + 1) / 2 + cta_extent(a) - 1 + column_extent(a) - 1) / column_extent(a); }
// Whether every block of a tile has such a slot. Else step i has slot i % SUM_SLOTS, until a block comes there that is at another distance.
constexpr bool AIMED_BY_TILE = !STRIDED && SUM_SLOTS >= slots_along(0) * slots_along(1) * slots_along(2);
DEVICE constexpr bool is_shared(int a) { return AIMED_BY_TILE && can_share(a); }

// Lines of a block along the axis of a lane's rows, by distance, where the last may be the first of the next block, and along the other axis.
constexpr int PAIR_LINES = RANK == 1 || COLUMN_Z * COLUMN_Y > 8 ? 8 : PAIRS_ALONG_Z ? COLUMN_Z : COLUMN_Y;
constexpr int LINES_ALONG = PAIR_LINES + (is_shared(PAIR_AXIS) ? 0 : 1);
constexpr int LINES = LINES_ALONG * (8 / PAIR_LINES);
// The line of a lane's first or second row and of the columns 8 j to 8 j + 7.
DEVICE constexpr int line_of(int j, int second) {
  const int along = PAIRS_ALONG_Z ? j / COLUMN_Y : j % PAIR_LINES, across = PAIRS_ALONG_Z ? j % COLUMN_Y : j / PAIR_LINES;
  return across * LINES_ALONG + (along + 1 - second) % LINES_ALONG;
}
// A lane has four floats of each two lines, all lanes' one behind the other, and of a last line that is left two.
constexpr int SLOT_BYTES = 4 * 64 * LINES;
// Where a slot has the sum of a row and a column in a line, in floats.
DEVICE int place_in_slot(int line, int row, int column) {
  const int width = LINES % 2 && line == LINES - 1 ? 2 : 4;
  return line / 2 * 128 + (row * 4 + column / 2) * width + line % 2 * 2 + column % 2;
}
constexpr int STATE_BYTES = 16;
// Where windows of a warp's rows begin, from the row: of its eight rows along x, and the least along the other axes.
struct __align__(16) Views { int x[8], z, y; };
constexpr int VIEWS_BYTES = AIMED_BY_TILE ? sizeof(Views) : 0;
constexpr int SUM_BYTES = SUM_BIAS ? SUM_SLOTS * (SLOT_BYTES + STATE_BYTES) + VIEWS_BYTES + (BIAS_ENTRIES + 35) / 4 * 16 : 0;  // of a warp
static_assert(!SUM_BIAS || BLOCKS == 1 && (RANK == 1 || ROW_X == 8 && COLUMN_X == 8), "lines are eight wide");

// A CTA has the same tiles every time, one behind the other: of each CTA the first, and behind the last CTA their number, see runs.rs.
struct Runs { int first[512]; };

constexpr int TURNS = (LINES + 3) / 4;  // of a warp whose eight lanes have a line

// What a slot holds. Steps are those of all of the CTA.
struct __align__(STATE_BYTES) SlotState {
  int distance;                  // of the block from the warp's first row, as an entry of the table; -1 for none
  int since;                     // the step that came first
  int wrong_from;                // the step from which on its slopes are to be computed again
};

struct BiasSums {
  static DEVICE int warp() { return threadIdx.x / 32 - 4; }
  static DEVICE u8* own() { return memory + SUMS_OFFSET + warp() * SUM_BYTES; }
  static DEVICE float* slopes(int slot) { return (float*)(own() + slot * SLOT_BYTES); }
  static DEVICE SlotState& state(int slot) { return ((SlotState*)(own() + SUM_SLOTS * SLOT_BYTES))[slot]; }
  static DEVICE Views& views() { return *(Views*)(own() + SUM_SLOTS * (SLOT_BYTES + STATE_BYTES)); }
  static DEVICE float* sums_of(int warp) { return (float*)(memory + SUMS_OFFSET + warp * SUM_BYTES + SUM_SLOTS * (SLOT_BYTES + STATE_BYTES) + VIEWS_BYTES); }
  // Of this CTA.
  static DEVICE float* row_of(const Bias& bias, int head) { return bias.sums + ((i64)head * bias.rows + blockIdx.x) * BIAS_ENTRIES; }

  // The CTA's first tile, and that behind its last one.
  static DEVICE int* run() { return (int*)(memory + TABLE_OFFSET + 8); }

  // Sets all sums to zero. Called by all threads, ahead of a barrier.
  static DEVICE void start(const Bias& bias, int heads) {
    for (int i = threadIdx.x; i < CONSUMER_WARPS * SUM_BYTES / 4; i += blockDim.x) ((float*)(memory + SUMS_OFFSET))[i] = 0.f;
    __syncthreads();
    if (threadIdx.x >= 128 && threadIdx.x % 32 < SUM_SLOTS) state(threadIdx.x % 32) = {-1, 0, 1 << 30};
    for (int head = 0; head < heads; head++)
      for (int i = threadIdx.x; i < BIAS_ENTRIES; i += blockDim.x) row_of(bias, head)[i] = 0.f;
  }

  // Calls `work` for each entry, in one of the CTA's consumers. All of a warp's lanes run the same loop, so that the compiler knows them to
  // be together behind it: where it does not, it keeps what is the same in all lanes in registers of each.
  template <typename Work> static DEVICE void for_each_entry(Work work) {
#pragma unroll 1
    for (int first = 0; first < BIAS_ENTRIES; first += 32 * CONSUMER_WARPS) {
      const int i = first + threadIdx.x - 128;
      if (i < BIAS_ENTRIES) work(i);
    }
  }

  // Where the sum of a distance belongs; -1 where no row sees as far.
  static DEVICE int entry_of(int z, int y, int x) {
    z += BIAS_Z / 2, y += BIAS_Y / 2, x += BIAS_X / 2;
    const bool exists = (u32)z < BIAS_Z && (u32)y < BIAS_Y && (u32)x < BIAS_X;
    return exists ? (z * BIAS_Y + y) * BIAS_X + x : -1;
  }

  // Row `member` of the warp's sixteen.
  static DEVICE void row_at(const Tile& tile, int member, int (&at)[PLACE]) {
    row_of_warpgroup(tile, warp() / 4, warp() % 4 * 16 + member, at);
  }

  // The slot of a tile's step `i`, whose block is at `walk`.
  static DEVICE int slot_of(const Walk& walk, int i) {
    if constexpr (!AIMED_BY_TILE) return i % SUM_SLOTS;
    int slot = 0;
#pragma unroll
    for (int a = 0; a < 3; a++)
      if (!can_share(a)) slot = slot * slots_along(a) + walk.at[a];
    return slot;
  }

  // Makes room for the slopes of a step whose block is at a distance.
  static DEVICE void aim(int slot, int distance, int step, int& is_wrong, int lane) {
    if (uniform(state(slot).distance) == distance) return;
    empty(slot, is_wrong, lane);
    point(slot, distance, step, lane);
    __syncwarp();
  }

  // Has an empty slot take slopes of steps from this one on.
  static DEVICE void point(int slot, int distance, int step, int lane) {
    if (lane == 0) state(slot).distance = distance, state(slot).since = step;
  }

  // Makes room for the slopes of a tile, whose first block is at a distance, from a step on: slots are emptied, unless its head is that of the
  // tile before and its rows see what those have seen.
  static DEVICE void begin_tile(const Space& space, const Tile& tile, const int (&row)[2][PLACE], int distance, int step, bool is_same, int& is_wrong, int lane) {
    const int z = is_shared(0) ? farthest<0>(space, tile, row) : 0, y = is_shared(1) ? farthest<1>(space, tile, row) : 0;
    const int x = is_shared(2) ? farthest<2>(space, tile, row) : 0;
    Views& views = BiasSums::views();
    if constexpr (AIMED_BY_TILE) is_same = is_same && state(0).distance == distance && views.x[lane / 4] == x && views.z == z && views.y == y;
    // By votes, so that the compiler knows that lanes stay together.
    if (__all_sync(~0u, is_same)) return;
    finish(is_wrong, lane);
    if constexpr (!AIMED_BY_TILE) return;
    if (lane % 4 == 0) views.x[lane / 4] = x;
    if (lane == 0) views.z = z, views.y = y;
#pragma unroll 1
    for (int slot = 0; slot < SUM_SLOTS; slot++) {
      int from = distance, rest = slot, pitch = 1;
#pragma unroll
      for (int a = 2; a >= 0; a--) {
        from += rest % slots_along(a) * column_extent(a) * pitch;
        rest /= slots_along(a);
        pitch *= table_extent(a);
      }
      point(slot, from, step, lane);
    }
    __syncwarp();
  }

  // The first distance along an axis that one of a lane's rows sees.
  template <int A> static DEVICE int farthest(const Space& space, const Tile& tile, const int (&row)[2][PLACE]) {
    const int first = window_of<A>(space, tile, row[0][A]).start - row[0][A];
    return A == PAIR_AXIS ? min_(first, window_of<A>(space, tile, row[1][A]).start - row[1][A]) : first;
  }

  // Of all distances along an axis that are a multiple of a block apart, the first that any row could see.
  template <int A> static DEVICE int first_of(int distance) {
    return (distance + bias_extent(A) / 2 & column_extent(A) - 1) - bias_extent(A) / 2;
  }
  // The one that rows see that see `least` and, of a block's length, those behind it.
  template <int A> static DEVICE int seen_of(int distance, int least) {
    if constexpr (!is_shared(A)) return distance;
    const int first = first_of<A>(distance);
    return first + (first < least ? column_extent(A) : 0);
  }

  // Adds the slopes of a step.
  static DEVICE void put(const float (&s)[SCORES], int slot, int lane) {
    float4* const to = (float4*)slopes(slot) + lane;
    float2* const last = (float2*)(slopes(slot) + LINES / 2 * 128) + lane;
    float sums[2 * LINES];
#pragma unroll
    for (int l = 0; l + 1 < LINES; l += 2) {
      const float4 four = to[16 * l];
      sums[2 * l] = four.x, sums[2 * l + 1] = four.y, sums[2 * l + 2] = four.z, sums[2 * l + 3] = four.w;
    }
    if constexpr (LINES % 2) sums[2 * LINES - 2] = last->x, sums[2 * LINES - 1] = last->y;
#pragma unroll
    for (int i = 0; i < 32; i++) sums[2 * line_of(i / 4, i / 2 % 2) + i % 2] += s[i];
#pragma unroll
    for (int l = 0; l + 1 < LINES; l += 2) to[16 * l] = make_float4(sums[2 * l], sums[2 * l + 1], sums[2 * l + 2], sums[2 * l + 3]);
    if constexpr (LINES % 2) *last = make_float2(sums[2 * LINES - 2], sums[2 * LINES - 1]);
  }

  // Adds what a slot holds to the sums, and sets it to zero.
  static DEVICE void empty(int slot, int& is_wrong, int lane) {
    // Numbers that are the same in every step would take registers.
    lane = opaque(lane);
    __syncwarp();
    if (uniform(state(slot).distance) >= 0 && uniform(state(slot).wrong_from) == 1 << 30) add(slot, is_wrong, lane);
    __syncwarp();
    float2* to = (float2*)slopes(slot) + lane;
#pragma unroll 1
    for (int l = 0; l < LINES; l++) to[32 * l] = make_float2(0.f, 0.f);
    if (lane == 0) state(slot).distance = -1;
    __syncwarp();
  }

  // What is infinite or NaN may come from pairs that do not see each other: from there on a slot's slopes are left to `recount`,
  // of which the CTA is told by `is_wrong`.
  static DEVICE void add(int slot, int& is_wrong, int lane) {
    int from[3], rest = state(slot).distance;
#pragma unroll
    for (int a = 2; a >= 0; a--) {
      from[a] = rest % table_extent(a) - bias_extent(a) / 2 - (cta_extent(a) - 1);
      rest /= table_extent(a);
    }
    const Views& views = BiasSums::views();
    // Along x, of the two parts of a lane's diagonals.
    const int near = is_shared(2) ? first_of<2>(from[2] + lane % 8) : from[2] + lane % 8, far = near + (is_shared(2) ? 8 : -8);
    float sums[2 * TURNS];       // of each turn's line
    float poison = 0.f;
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      const int line = min_(lane / 8 + 4 * t, LINES - 1);
      sums[2 * t] = sums[2 * t + 1] = 0.f;
#pragma unroll
      for (int x = 0; x < 8; x++) {
        const int column = lane + x & 7;
        const float slope = slopes(slot)[place_in_slot(line, x, column)];
        if (is_shared(2) ? near < views.x[x] : column < x) sums[2 * t + 1] += slope;
        else sums[2 * t] += slope;
      }
      poison = fmaf(sums[2 * t], 0.f, fmaf(sums[2 * t + 1], 0.f, poison));
    }
    if (__any_sync(~0u, !(poison == 0.f))) {
      __syncwarp();
      if (lane == 0) state(slot).wrong_from = state(slot).since;
      is_wrong = 1;
      return;
    }
    float* all = sums_of(warp());
    // Of one axis, what is behind in a line has the distances of the line before, which another lane adds.
    constexpr int PHASES = RANK == 1 ? 2 : 1;
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
      float* to[2 * TURNS];
#pragma unroll
      for (int i = phase; i < 2 * TURNS; i += PHASES) {
        const int l = lane / 8 + i / 2 * 4, along = l % LINES_ALONG - 1, across = l / LINES_ALONG;
        const int x = i % 2 ? far : near;
        const int y = seen_of<1>(from[1] + (PAIRS_ALONG_Z ? across : along), is_shared(1) ? views.y : 0), z = seen_of<0>(from[0] + (PAIRS_ALONG_Z ? along : across), is_shared(0) ? views.z : 0);
        const int entry = RANK == 1 ? entry_of(0, 0, x + 8 * along) : entry_of(z, y, x);
        // What belongs to no entry goes to one of the lane's own.
        to[i] = all + (l < LINES && entry >= 0 ? entry : BIAS_ENTRIES + lane);
        sums[i] += *to[i];
      }
#pragma unroll
      for (int i = phase; i < 2 * TURNS; i += PHASES) *to[i] = sums[i];
      if constexpr (PHASES > 1) __syncwarp();
    }
  }

  // Empties all slots.
  static DEVICE void finish(int& is_wrong, int lane) {
#pragma unroll 1
    for (int slot = 0; slot < SUM_SLOTS; slot++) empty(slot, is_wrong, lane);
  }

  // Adds the sums of all warps to the CTA's row for a head; they start again from zero. Called by all consumers, between two
  // barriers of theirs. Each thread has entries of its own.
  static DEVICE void flush(const Bias& bias, int head) {
    for_each_entry([&](int i) {
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < CONSUMER_WARPS; w++) {
        sum += sums_of(w)[i];
        sums_of(w)[i] = 0.f;
      }
      row_of(bias, head)[i] += sum;
    });
  }

  // The slopes that `add` has left out, pair by pair, when all tiles are done: here it takes no registers from them. `tile` is a
  // place in shared memory. Called by all consumers.
  static DEVICE void recount(const Params& params, Tile& tile, int lane) {
    int first = 0;
#pragma unroll 1
    for (int index = run()[0]; index < run()[1]; index++) {
      named_sync(BIAS_BARRIER, 32 * CONSUMER_WARPS);
      if (threadIdx.x == 128) decode_tile(params.space, params.shift, params.bias.samples, index, tile);
      named_sync(BIAS_BARRIER, 32 * CONSUMER_WARPS);
      if (tile.steps == 0) continue;
      Walk at;
      at.start(tile, 0);
#pragma unroll 1
      for (int i = 0; i < tile.steps; i++, at.next(tile))
        if (first + i >= uniform(state(slot_of(at, i)).wrong_from)) recount_step(params, tile, at, lane);
      first += tile.steps + additional_steps(params.additional);
      named_sync(BIAS_BARRIER, 32 * CONSUMER_WARPS);
      flush(params.bias, tile.head);
    }
  }

  static DEVICE void recount_step(const Params& params, const Tile& tile, const Walk& walk, int lane) {
#pragma unroll 1
    for (int pair = 0; pair < 16 * 64; pair++) {
      int row[PLACE], column[3];
      row_at(tile, pair / 64, row);
      const int n = pair % 64;
      column[0] = tile.column[0] + walk.at[0] * COLUMN_Z + n / (COLUMN_Y * COLUMN_X);
      column[1] = tile.column[1] + walk.at[1] * COLUMN_Y + n / COLUMN_X % COLUMN_Y;
      column[2] = tile.column[2] + walk.at[2] * COLUMN_X + n % COLUMN_X;
      if (!row_exists(tile, row) || !is_visible(params.space, tile, row, column)) continue;
      const float slope = slope_of(params, tile, row, column, lane);
      if (lane == 0) sums_of(warp())[entry_of(column[0] - row[0], column[1] - row[1], column[2] - row[2])] += slope;
    }
  }
};
