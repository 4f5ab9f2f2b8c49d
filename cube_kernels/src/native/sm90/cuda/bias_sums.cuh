// The gradient of the bias. Each warp adds up the slopes of its rows by their distance from the columns in
// shared memory of its own; the sums of a CTA's warps become a row of memory for each head, see bias.cu. Rows and blocks are
// boxes that are eight wide, or of one axis. Compile-time parameters: SUM_BIAS, SUM_SLOTS, and those of bias.cuh.
//
// Most tiles see their blocks from as far as the tile before. So slopes are added to those of earlier steps first, place by place:
// step i of a tile in slot i % SUM_SLOTS, until one comes there that is at another distance. Then the sums of the slot are
// added up by distance, and it starts again from zero.
//
// A lane has slopes of two rows, which are neighbors along y, or along z, or eight apart: it adds up those that have the same
// distance. What is left are lines of eight columns for eight rows, x = 0 to 7, which are neighbors along x. Of column c in row x
// the distance is c - x, so that a lane adds up a diagonal that goes on at the line's begin: first where c >= x, then
// those behind.

constexpr bool PAIRS_ALONG_Z = RANK == 3 && ROW_Y == 1;
// Lines of a block along y, or of one axis, and lines by distance.
constexpr int BLOCK_LINES = RANK == 1 ? 8 : COLUMN_Y;
constexpr int LINES_Y = PAIRS_ALONG_Z ? BLOCK_LINES : BLOCK_LINES + 1;
constexpr int LINES = LINES_Y * (PAIRS_ALONG_Z ? COLUMN_Z + 1 : COLUMN_Z);
// The line of a lane's first or second row and of the columns 8 j to 8 j + 7.
DEVICE constexpr int line_of(int j, int second) {
  return PAIRS_ALONG_Z ? (j / BLOCK_LINES + 1 - second) * LINES_Y + j % BLOCK_LINES : j / BLOCK_LINES * LINES_Y + j % BLOCK_LINES + 1 - second;
}
// A lane has four floats of each two lines, all lanes' one behind the other, and of a last line that is left two.
constexpr int SLOT_BYTES = 4 * 64 * LINES;
// Where a slot has the sum of a row and a column in a line, in floats.
DEVICE int place_in_slot(int line, int row, int column) {
  const int width = LINES % 2 && line == LINES - 1 ? 2 : 4;
  return line / 2 * 128 + (row * 4 + column / 2) * width + line % 2 * 2 + column % 2;
}
constexpr int STATE_BYTES = 16;
constexpr int SUM_BYTES = SUM_BIAS ? SUM_SLOTS * (SLOT_BYTES + STATE_BYTES) + (BIAS_ENTRIES + 35) / 4 * 16 : 0;  // of a warp
static_assert(!SUM_BIAS || BLOCKS == 1 && (RANK == 1 || ROW_X == 8 && COLUMN_X == 8), "lines are eight wide");

// A CTA has the same tiles every time, one behind the other: of each CTA the first, and behind the last CTA their number, see runs.rs.
struct Runs { int first[512]; };

// Whether every step of a tile has a slot of its own: strides aside, rows that follow each other see at most one column more.
DEVICE constexpr int most_blocks(int a) { return ((bias_extent(a) + 1) / 2 + cta_extent(a) - 1 + column_extent(a) - 1) / column_extent(a); }
constexpr bool AIMED_BY_TILE = !STRIDED && SUM_SLOTS >= most_blocks(0) * most_blocks(1) * most_blocks(2);

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
  static DEVICE float* sums_of(int warp) { return (float*)(memory + SUMS_OFFSET + warp * SUM_BYTES + SUM_SLOTS * (SLOT_BYTES + STATE_BYTES)); }
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

  // The slot of a tile's step.
  static DEVICE int slot_of(int i) { return i % SUM_SLOTS; }
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
    float sums[2 * TURNS];       // of each turn's line: from the diagonal's column in row 0 on, and behind the line's begin
    float poison = 0.f;
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
      const int line = min_(lane / 8 + 4 * t, LINES - 1);
      sums[2 * t] = sums[2 * t + 1] = 0.f;
#pragma unroll
      for (int x = 0; x < 8; x++) {
        const int column = lane + x & 7;
        const float slope = slopes(slot)[place_in_slot(line, x, column)];
        if (column < x) sums[2 * t + 1] += slope;
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
    int from[3], rest = state(slot).distance;
#pragma unroll
    for (int a = 2; a >= 0; a--) {
      from[a] = rest % table_extent(a) - bias_extent(a) / 2 - (cta_extent(a) - 1);
      rest /= table_extent(a);
    }
    float* all = sums_of(warp());
    // Of one axis, what is behind in a line has the distances of the line before, which another lane adds.
    constexpr int PHASES = RANK == 1 ? 2 : 1;
#pragma unroll
    for (int phase = 0; phase < PHASES; phase++) {
      float* to[2 * TURNS];
#pragma unroll
      for (int i = phase; i < 2 * TURNS; i += PHASES) {
        const int l = lane / 8 + i / 2 * 4, across = l % LINES_Y - !PAIRS_ALONG_Z, x = from[2] + lane % 8 - i % 2 * 8;
        const int entry = RANK == 1 ? entry_of(0, 0, x + 8 * across) : entry_of(from[0] + l / LINES_Y - PAIRS_ALONG_Z, from[1] + across, x);
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
        if (first + i >= uniform(state(slot_of(i)).wrong_from)) recount_step(params, tile, at, lane);
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
