// The relative position bias: a score of the row and the column at two positions of a dilation group gets the entry
// that belongs to their distance. Compile-time parameters: BIAS, and SUM_BIAS where a kernel sums its gradient,
// with BIAS_Z, BIAS_Y, BIAS_X, the entries along each axis.
//
// Entries come from the table that bias.cu makes, through the first level of cache: those of neighboring rows and columns
// are neighbors, 15 of them for a warp's 32 scores where boxes are 8 wide.

struct Bias {
  const u32* table;              // of the first head: each entry and its neighbor along the fastest axis, see bias.cu
  float* sums;                   // of the tiles of this launch, see bias.cu
  int pitch_z, pitch_y;          // entries between neighbors
  int head;                      // entries of a head
  int origin;                    // the entry of a row's own position
  int tiles;                     // of this launch, for each head of a sample
  int places, rows;              // of `sums`, for each head of a sample and for each head
  int padding;
};

// From the entry of a row and a column to that of the same row and another column.
DEVICE int bias_distance(const Bias& bias, int z, int y, int x) {
  const int distance = z * bias.pitch_z + y * bias.pitch_y + x;
  return INVERSE ? -distance : distance;
}
// The same from the first column of a block to its column `n`. Extents are powers of two, so that what belongs to the bits of
// `n` adds up.
DEVICE int bias_column(const Bias& bias, int n) {
  return bias_distance(bias, n / (COLUMN_Y * COLUMN_X), n / COLUMN_X % COLUMN_Y, n % COLUMN_X);
}
DEVICE float bias_of(const Bias& bias, int head, const int (&row)[3], const int (&column)[3]) {
  const int distance = bias_distance(bias, column[0] - row[0], column[1] - row[1], column[2] - row[2]);
  return unpack((u16)bias.table[(i64)head * bias.head + bias.origin + distance]);
}

// Scores as with a bias, where there is none.
DEVICE void scale_scores(float (&s)[SCORES], float scale) {
#pragma unroll
  for (int i = 0; i < SCORES; i++) s[i] *= scale;
}

// The two rows that a lane holds.
struct BiasRows {
  Walk walk;
  int entry[2];                  // of the lane's first column, if the tile's first block were the next

  DEVICE void start_tile(const Bias& bias, const Tile& tile, const int (&row)[2][3], int step, int lane) {
    walk.start(tile, step * BLOCKS);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int distance = bias_distance(bias, tile.column[0] - row[r][0], tile.column[1] - row[r][1], tile.column[2] - row[r][2]);
      entry[r] = bias.origin + distance + bias_column(bias, lane % 4 * 2);
    }
  }

  // Scales the scores of the step at `walk` and adds the bias of `head`.
  DEVICE void add(const Bias& bias, const Tile& tile, int head, float (&s)[SCORES], float scale) {
    const u32* table = bias.table + (i64)head * bias.head;
    Walk walk = this->walk;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      const int block = bias_distance(bias, walk.at[0] * COLUMN_Z, walk.at[1] * COLUMN_Y, walk.at[2] * COLUMN_X);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        // Addresses computed ahead would take more registers than there are.
        const int at = opaque(entry[r] + block);
#pragma unroll
        for (int j = 0; j < 8; j++) {
          // Against the direction of the columns where rows are keys.
          const u32 pair = __ldg(table + (at + bias_column(bias, 8 * j)) - INVERSE);
          const float low = unpack((u16)pair), high = unpack((u16)(pair >> 16));
          float* score = &s[32 * b + 4 * j + 2 * r];
          score[0] = fmaf(score[0], scale, INVERSE ? high : low);
          score[1] = fmaf(score[1], scale, INVERSE ? low : high);
        }
      }
      walk.next(tile);
    }
  }

  // To the next step.
  DEVICE void next(const Tile& tile) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) walk.next(tile);
  }
};
