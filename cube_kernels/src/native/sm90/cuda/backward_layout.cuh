// Where everything lies in the shared memory of a CTA, in bytes from its start.

constexpr int FIRST_TILE = chunks_of(DIM) * 64 * SWIZZLE;  // bytes, of one warpgroup
constexpr int SECOND_TILE = chunks_of(DIM_V) * 64 * SWIZZLE;
constexpr int FIRST_STAGE = chunks_of(DIM) * STAGE_ROWS * SWIZZLE;
constexpr int SECOND_STAGE = chunks_of(DIM_V) * STAGE_ROWS * SWIZZLE;
constexpr int SECOND_TILE_OFFSET = ROW_TILES * FIRST_TILE;
constexpr int THIRD_TILE_OFFSET = SECOND_TILE_OFFSET + ROW_TILES * SECOND_TILE;  // of the output, with MAKES_STATISTICS
constexpr int TILE_BYTES = ROW_TILES * (FIRST_TILE + (MAKES_STATISTICS ? 2 : 1) * SECOND_TILE);
constexpr int SUMS_BYTES = SHARED_ROWS ? 64 * 4 * (DIM > DIM_V ? DIM : DIM_V) : 0;  // of one gradient, in the place of the rows
constexpr int ROWS_BYTES = TILE_BYTES > SUMS_BYTES ? TILE_BYTES : SUMS_BYTES;
constexpr int ROWS_LOADED = ROW_TILES * (chunks_of(DIM) + (MAKES_STATISTICS ? 2 : 1) * chunks_of(DIM_V)) * ROW_BOX * SWIZZLE;
constexpr int FIRST_OFFSET = ROW_BUFFERS * ROWS_BYTES;
constexpr int SECOND_OFFSET = FIRST_OFFSET + STAGES * FIRST_STAGE;
constexpr int ONE_HOT_OFFSET = SECOND_OFFSET + STAGES * SECOND_STAGE;
constexpr int STATISTICS_OFFSET = ONE_HOT_OFFSET + ONE_HOT_BYTES;
constexpr int STATISTICS_STAGE = INVERSE ? ROWS * 16 : 0;  // see query_statistics.cuh
constexpr int STEP_LOADED = (chunks_of(DIM) + chunks_of(DIM_V)) * ROWS * SWIZZLE + STATISTICS_STAGE;
constexpr int TILE_OFFSET = STATISTICS_OFFSET + STAGES * STATISTICS_STAGE;
// Results are written when the rows are gone. With EARLY the tile behind the next is found meanwhile.
constexpr int TILE_SLOTS = EARLY ? 4 : 2 * ROW_BUFFERS;
constexpr int TILES = LISTED ? ROW_TILES : 1;  // of a slot: listed, each box of rows has its own
constexpr int BARRIER_OFFSET = TILE_OFFSET + TILE_SLOTS * TILES * 128;
constexpr int TABLE_OFFSET = BARRIER_OFFSET + 8 * (2 * STAGES + 2 * ROW_BUFFERS);  // of a bias
constexpr int SUMS_OFFSET = TABLE_OFFSET + TABLE_BYTES;  // of its gradient, see bias_sums.cuh

extern __shared__ __align__(1024) u8 memory[];
