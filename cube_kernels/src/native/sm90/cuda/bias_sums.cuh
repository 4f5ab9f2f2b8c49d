// The gradient of the bias. Each warp adds up the slopes of its rows by their distance from the columns, eight rows and a
// block at a time, in shared memory of its own; a tile's sums then become a row of memory, see bias.cu. Compile-time
// parameters: SUM_BIAS, and BIAS_Z, BIAS_Y, BIAS_X, the entries along each axis.

constexpr int SUM_ENTRIES = BIAS_Z * BIAS_Y * BIAS_X;

// Eight consecutive rows of a tile are a box.
constexpr int EIGHT_X = ROW_X < 8 ? ROW_X : 8;
constexpr int EIGHT_Y = ROW_Y < 8 / EIGHT_X ? ROW_Y : 8 / EIGHT_X;
constexpr int EIGHT_Z = 8 / (EIGHT_X * EIGHT_Y);
// Distances between it and a block.
constexpr int NEAR_X = EIGHT_X + COLUMN_X - 1, NEAR_Y = EIGHT_Y + COLUMN_Y - 1, NEAR_Z = EIGHT_Z + COLUMN_Z - 1;
constexpr int NEAR = NEAR_X * NEAR_Y * NEAR_Z;
constexpr int SUM_BYTES = SUM_BIAS ? 4 * (8 * NEAR + (SUM_ENTRIES + 3) / 4 * 4) : 0;  // of a warp

// Where column `n` of a block stands among the distances of the first row.
DEVICE constexpr int near_of(int n) { return (n / (COLUMN_Y * COLUMN_X) * NEAR_Y + n / COLUMN_X % COLUMN_Y) * NEAR_X + n % COLUMN_X; }

extern __shared__ __align__(1024) u8 memory[];

struct BiasSums {
  int wrong_from[2];             // the block from which on slopes of eight rows are to be computed again

  static DEVICE int warp() { return threadIdx.x / 32 - 4; }
  static DEVICE float* slopes() { return (float*)(memory + SUMS_OFFSET + warp() * SUM_BYTES); }
  static DEVICE float* sums_of(int warp) { return (float*)(memory + SUMS_OFFSET + warp * SUM_BYTES) + 8 * NEAR; }

  DEVICE void start(int lane) {
    // Slopes as well: a row never has some of the distances.
    for (int i = lane; i < SUM_BYTES / 4; i += 32) slopes()[i] = 0.f;
    __syncwarp();
  }

  DEVICE void start_tile() { wrong_from[0] = wrong_from[1] = 1 << 30; }

  // Where the sum of a distance belongs; -1 where no row sees as far.
  static DEVICE int entry_of(int z, int y, int x) {
    z += BIAS_Z / 2, y += BIAS_Y / 2, x += BIAS_X / 2;
    const bool exists = (u32)z < BIAS_Z && (u32)y < BIAS_Y && (u32)x < BIAS_X;
    return exists ? (z * BIAS_Y + y) * BIAS_X + x : -1;
  }

  // Row `eighth` of the lane's first or second eight of the warpgroup.
  static DEVICE void row_at(const Tile& tile, int second, int eighth, int (&at)[3]) {
    row_of_warpgroup(tile, warp() / 4, warp() % 4 * 16 + 8 * second + eighth, at);
  }

  // Adds the slopes of step `i`, which is at `walk`. What is infinite or NaN may come from pairs that do not see each other:
  // from there on the rows' slopes are left to `recount`.
  DEVICE void add(const Tile& tile, Walk walk, const float (&s)[SCORES], int i, int lane) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      const int block = i * BLOCKS + b;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if (block >= wrong_from[r]) continue;
        __syncwarp();
        // Rows lie one under the other by distance, so that sums are those of columns.
        const int eighth = lane / 4;
        const int back = (eighth / (EIGHT_Y * EIGHT_X) * NEAR_Y + eighth / EIGHT_X % EIGHT_Y) * NEAR_X + eighth % EIGHT_X;
        float* to = slopes() + eighth * NEAR + ((EIGHT_Z - 1) * NEAR_Y + EIGHT_Y - 1) * NEAR_X + EIGHT_X - 1 - back + near_of(lane % 4 * 2);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) to[near_of(8 * j) + near_of(e)] = s[32 * b + 4 * j + 2 * r + e];
        __syncwarp();
        // Numbers that are the same in every step would take registers.
        const int first = opaque(lane);
        float near[(NEAR + 31) / 32];
        bool wrong = false;
#pragma unroll
        for (int t = 0; t < (NEAR + 31) / 32; t++) {
          near[t] = 0.f;
          if (first + 32 * t < NEAR)
#pragma unroll
            for (int row = 0; row < 8; row++) near[t] += slopes()[row * NEAR + first + 32 * t];
          wrong = wrong || !(near[t] * 0.f == 0.f);
        }
        if (__any_sync(~0u, wrong)) {
          wrong_from[r] = block;
          continue;
        }
        int row[3];
        row_at(tile, r, 0, row);
        int from[3];
#pragma unroll
        for (int a = 0; a < 3; a++) from[a] = tile.column[a] + walk.at[a] * column_extent(a) - row[a];
#pragma unroll
        for (int t = 0; t < (NEAR + 31) / 32; t++) {
          const int n = first + 32 * t;
          const int entry = entry_of(from[0] + n / (NEAR_Y * NEAR_X) - (EIGHT_Z - 1), from[1] + n / NEAR_X % NEAR_Y - (EIGHT_Y - 1), from[2] + n % NEAR_X - (EIGHT_X - 1));
          if (n < NEAR && entry >= 0) sums_of(warp())[entry] += near[t];
        }
      }
      walk.next(tile);
    }
  }

  // The slopes that `add` has left out, pair by pair.
  DEVICE void recount(const Params& params, const Tile& tile, int lane) {
#pragma unroll 1
    for (int r = 0; r < 2; r++) {
      const int from = r ? wrong_from[1] : wrong_from[0];
      if (from >= tile.steps * BLOCKS) continue;
      __syncwarp();
      Walk at;
      at.start(tile, from);
#pragma unroll 1
      for (int block = from; block < tile.steps * BLOCKS; block++, at.next(tile))
#pragma unroll 1
        for (int pair = 0; pair < 8 * 64; pair++) {
          int row[3], column[3];
          row_at(tile, r, pair / 64, row);
          const int n = pair % 64;
          column[0] = tile.column[0] + at.at[0] * COLUMN_Z + n / (COLUMN_Y * COLUMN_X);
          column[1] = tile.column[1] + at.at[1] * COLUMN_Y + n / COLUMN_X % COLUMN_Y;
          column[2] = tile.column[2] + at.at[2] * COLUMN_X + n % COLUMN_X;
          if (!row_exists(tile, row) || !is_visible(params.space, tile, row, column)) continue;
          const float slope = slope_of(params, tile, row, column, lane);
          if (lane == 0) sums_of(warp())[entry_of(column[0] - row[0], column[1] - row[1], column[2] - row[2])] += slope;
        }
    }
  }

  // The sums of all warps of the CTA become the tile's, and start again from zero.
  DEVICE void flush(const Bias& bias, const Tile& tile) {
    float* to = bias.sums + ((i64)tile.head * bias.rows + tile.batch * bias.places + tile.number) * SUM_ENTRIES;
    named_sync(1, 32 * CONSUMER_WARPS);
    for (int i = threadIdx.x - 128; i < SUM_ENTRIES; i += 32 * CONSUMER_WARPS) {
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < CONSUMER_WARPS; w++) {
        sum += sums_of(w)[i];
        sums_of(w)[i] = 0.f;
      }
      to[i] = sum;
    }
    named_sync(1, 32 * CONSUMER_WARPS);
  }
};
