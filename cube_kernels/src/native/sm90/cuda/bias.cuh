// The relative position bias: a score of the row and the column at two positions of a dilation group gets the entry
// that belongs to their distance. Compile-time parameters: BIAS, with BIAS_Z, BIAS_Y, BIAS_X, the entries along each axis, and
// SUM_BIAS where a kernel sums its gradient.
//
// A pipeline has the entries of one head in shared memory, as raw scores, by the distance from row to column, with zeros around
// them for what boxes reach and windows do not. Pitches are known to the compiler, so that a load is one instruction, and
// scores of a lane that have the same distance share it: 18 for 32 scores where boxes are 8 x 8. Tiles come head by
// head: a table is made once for many of them.

// Of the table: the rows of a CTA see farther than one of them on both sides, and the last block begins with the last column
// that is seen. Behind it the slow axis runs on.
DEVICE constexpr int table_extent(int a) {
  return bias_extent(a) + 2 * (cta_extent(a) - 1) + column_extent(a) - 1 + (BLOCKS > 1 && a == SLOW ? column_extent(a) : 0);
}
constexpr int TABLE_ENTRIES = table_extent(0) * table_extent(1) * table_extent(2);
constexpr int TABLE_HEADER = 16;  // bytes: the head that the table is of, whether sums of the gradient are to be completed, and the CTA's tiles, see bias_sums.cuh
// There may be a second copy, which begins with entry 1, so that a lane reads entries of two adjacent columns at once: from the copy
// that has them at a multiple of eight bytes. Lanes of neighboring rows read from both; banks are half of all apart.
constexpr bool PAIRED_ENTRIES = BIAS_COPIES > 1;
constexpr int SECOND_COPY = (TABLE_ENTRIES + 16) / 32 * 32 + 16;  // where entry 1 is, in entries
constexpr int TABLE_BYTES = BIAS ? TABLE_HEADER + ((PAIRED_ENTRIES ? SECOND_COPY : 0) + TABLE_ENTRIES + 3) / 4 * 16 : 0;
static_assert(!PAIRED_ENTRIES || COLUMN_X % 2 == 0 && table_extent(2) % 2 == 0, "blocks and lines begin with the same parity");

// From an entry of the table to another.
DEVICE constexpr int table_distance(int z, int y, int x) { return (z * table_extent(1) + y) * table_extent(2) + x; }
// The same from the first member of a box to its member `n`. Extents are powers of two, so that what belongs to the bits of `n`
// adds up.
DEVICE constexpr int table_column(int n) { return table_distance(n / (COLUMN_Y * COLUMN_X), n / COLUMN_X % COLUMN_Y, n % COLUMN_X); }
DEVICE constexpr int table_row(int n) { return table_distance(n / (ROW_Y * ROW_X), n / ROW_X % ROW_Y, n % ROW_X); }

// The table in shared memory.
struct BiasTable {
  u8* at;

  DEVICE int& head() const { return ((int*)at)[0]; }
  DEVICE int& is_wrong() const { return ((int*)at)[1]; }
  DEVICE float* entries() const { return (float*)(at + TABLE_HEADER); }

  DEVICE void start() const { head() = -1, is_wrong() = 0; }

  // Called by all consumers of a pipeline, between two barriers of theirs.
  DEVICE void fill(const Bias& bias, int head, float scale_log2) const {
    const u16* from = bias.entries + (i64)head * BIAS_ENTRIES;
    const float factor = LOG2_E / scale_log2;
    const int thread = (threadIdx.x - 128) % (32 * CONSUMER_WARPS);
#pragma unroll 2
    for (int i = thread; i < TABLE_ENTRIES; i += 32 * CONSUMER_WARPS) {
      int rest = i, place = 0, pitch = 1;
      bool exists = true;
#pragma unroll
      for (int a = 2; a >= 0; a--) {
        const int n = rest % table_extent(a) - (cta_extent(a) - 1);
        exists = exists && (u32)n < bias_extent(a);
        place += n * pitch;
        pitch *= bias_extent(a);
        rest /= table_extent(a);
      }
      // Where rows are keys it is the other way round.
      const float entry = exists ? unpack(from[INVERSE ? BIAS_ENTRIES - 1 - place : place]) * factor : 0.f;
      entries()[i] = entry;
      if constexpr (PAIRED_ENTRIES) entries()[SECOND_COPY - 1 + i] = entry;
    }
    if (thread == 0) this->head() = head;
  }
};
constexpr int BIAS_BARRIER = 8;  // of the consumers, the first pipeline's

// The two rows that a lane holds.
struct BiasRows {
  Walk walk;
  int entry;                     // of the lane's first row and column, if the tile's first block were the next
  int from;                      // where the lane reads it

  DEVICE void start_tile(const Tile& tile, const int (&row)[2][PLACE], int step, int lane) {
    walk.start(tile, step * BLOCKS);
    int distance[3];
#pragma unroll
    for (int a = 0; a < 3; a++) distance[a] = tile.column[a] - row[0][a] + bias_extent(a) / 2 + cta_extent(a) - 1;
    entry = table_distance(distance[0], distance[1], distance[2]) + table_column(lane % 4 * 2);
    from = entry + (PAIRED_ENTRIES && entry % 2 ? SECOND_COPY - 1 : 0);
  }

  // The entry of the lane's first row and column, if a block were the next.
  static DEVICE int block_at(const Walk& walk) { return table_distance(walk.at[0] * COLUMN_Z, walk.at[1] * COLUMN_Y, walk.at[2] * COLUMN_X); }
  // From there to that of score `i` of a block.
  static DEVICE constexpr int place_of(int i) { return table_column(i / 4 * 8 + i % 2) - table_row(i / 2 % 2 * 8); }

  // What the scores of a step begin with: the entries of the block whose entries are `block` from those of the tile's first one.
  DEVICE void load(const BiasTable& table, int block, float (&s)[SCORES]) const {
    const int first = from + block;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      // Rows share entries. To read pairs again takes half as many instructions as to copy what they share.
      const float* at = table.entries() + (PAIRED_ENTRIES && r > 0 ? opaque(first) : first);
#pragma unroll
      for (int i = 2 * r; i < 32; i += 4) {
        if constexpr (PAIRED_ENTRIES) {
          const float2 pair = *(const float2*)(at + place_of(i));
          s[i] = pair.x, s[i + 1] = pair.y;
        } else {
          s[i] = at[place_of(i)], s[i + 1] = at[place_of(i + 1)];
        }
      }
    }
  }

  // Adds entries to scores that are there, of the step at `walk`: of two blocks, whose mask has no room for 16 bits.
  DEVICE void add(const BiasTable& table, const Tile& tile, float (&s)[SCORES]) const {
    Walk walk = this->walk;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      const int at = entry + block_at(walk);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        // What rows share would take more registers than there are.
        const float* from = table.entries() + opaque(at);
#pragma unroll
        for (int i = 2 * r; i < 32; i += i % 2 ? 3 : 1) s[32 * b + i] += from[place_of(i)];
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
