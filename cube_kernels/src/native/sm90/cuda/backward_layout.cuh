// Where everything lies in the shared memory of a CTA, in bytes from its start.

constexpr int FIRST_TILE = chunks_of(DIM) * 64 * SWIZZLE;  // bytes, of one warpgroup
constexpr int SECOND_TILE = chunks_of(DIM_V) * 64 * SWIZZLE;
constexpr int FIRST_STAGE = chunks_of(DIM) * ROWS * SWIZZLE;
constexpr int SECOND_STAGE = chunks_of(DIM_V) * ROWS * SWIZZLE;
constexpr int SECOND_TILE_OFFSET = WARPGROUPS * FIRST_TILE;
constexpr int ROWS_BYTES = WARPGROUPS * (FIRST_TILE + SECOND_TILE);
constexpr int ROWS_LOADED = WARPGROUPS * (chunks_of(DIM) + chunks_of(DIM_V)) * ROW_BOX * SWIZZLE;
constexpr int FIRST_OFFSET = ROW_BUFFERS * ROWS_BYTES;
constexpr int SECOND_OFFSET = FIRST_OFFSET + STAGES * FIRST_STAGE;
constexpr int ONE_HOT_OFFSET = SECOND_OFFSET + STAGES * SECOND_STAGE;
constexpr int STATISTICS_OFFSET = ONE_HOT_OFFSET + ONE_HOT_BYTES;
constexpr int STATISTICS_STAGE = INVERSE ? ROWS * 16 : 0;  // see delta.cu
constexpr int TILE_OFFSET = STATISTICS_OFFSET + STAGES * STATISTICS_STAGE;
// Results are written when the rows are gone. Of a packed batch, the tile behind the next is found meanwhile.
constexpr int TILE_SLOTS = PACKED ? 4 : 2 * ROW_BUFFERS;
constexpr int TILES = LISTED ? WARPGROUPS : 1;  // of a slot: listed, each warpgroup has its own
constexpr int BARRIER_OFFSET = TILE_OFFSET + TILE_SLOTS * TILES * 128;
constexpr int TABLE_OFFSET = BARRIER_OFFSET + 8 * (2 * STAGES + 2 * ROW_BUFFERS);  // of a bias
constexpr int SUMS_OFFSET = TABLE_OFFSET + TABLE_BYTES;  // of its gradient, see bias_sums.cuh

extern __shared__ __align__(1024) u8 memory[];
