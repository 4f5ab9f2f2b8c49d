// Block-sparse attention of queries that have lists of their own, or share them with few: the rows that see the same keys are the heads
// of a group, too few for wgmma's 64. So each warp has sixteen rows of its own, the heads of a query or of some, and multiplies them
// with mma.sync. The WARPS of a CTA share what one more warp brings: the blocks that some of its QUERIES neighbouring queries list, each
// once, see union_lists.cu. A warp passes over those that none of its queries lists. What such lists cost is what comes out of the
// cache, 32 KB a block at 128 elements: 16 rows do 128 products of 16 x 8 x 16 with them in less time than that takes.
//
// Compile-time parameters: BF16, DIM, DIM_V (multiples of 16), GROUP (heads that share a list), KEYS (of a block, 16, 32 or 64), STAGES,
// CAUSAL. Shared memory: STAGES blocks of keys and of values, swizzled as TMA does in rows of 128 bytes, their items and barriers.

constexpr int WARPS = 8, THREADS = 32 * WARPS + 128;   // a warpgroup for one thread: registers change hands between warpgroups
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
constexpr int PARTS = (GROUP + 15) / 16;               // warps for the heads of a query
constexpr int WARP_QUERIES = GROUP >= 16 ? 1 : GROUP < 4 ? 4 : 16 / GROUP;  // at most as many as leave a CTA's queries 32 bits
constexpr int QUERIES = WARPS / PARTS * WARP_QUERIES;  // of a CTA
constexpr int SCORES = KEYS / 2;                       // a lane's

// What score.cuh and row_sum.cuh ask for.
enum { LINEAR = 1, BY_ITEM = 3 };
constexpr int MASK = BY_ITEM, BIAS = 0;
DEVICE float unseen() { return NEG_INF; }  // scores of what a row does not see

constexpr int K_BYTES = chunks_of(DIM) * KEYS * SWIZZLE, V_BYTES = chunks_of(DIM_V) * KEYS * SWIZZLE;
constexpr int STAGE = K_BYTES + V_BYTES;
constexpr int ITEM_OFFSET = STAGES * STAGE, BARRIER_OFFSET = ITEM_OFFSET + 8 * STAGES;

extern __shared__ __align__(1024) u8 memory[];

struct Barriers {
  u32 base;
  DEVICE u32 full(int stage) const { return base + 8 * stage; }
  DEVICE u32 empty(int stage) const { return base + 8 * (STAGES + stage); }
};
DEVICE int stage_of(int step) { return step % STAGES; }
DEVICE u32 parity_of(int step) { return step / STAGES & 1; }

struct Union {
  const u64* items;              // [tiles, QUERIES * entries], see union_lists.cu
  const int* counts;
  int queries, keys;
  int heads;                     // of the queries
  int heads_kv;
  int entries;
  int tiles, tiles_of_head;
  int origin, step;              // query i stands at i + origin, key j at j * step
  int padding;
};

// Items of a CTA's tile.
struct Items {
  const u64* at;
  int count;
  DEVICE Items(const Union& of, int tile) : at(of.items + (i64)tile * (QUERIES * of.entries)), count(of.counts[tile]) {}
};

// One thread: all blocks of all tiles of the CTA.
DEVICE void produce(const Union& of, const TensorMap* map_key, const TensorMap* map_value, u32 shared, const Barriers& barriers) {
  u64* const ring = (u64*)(memory + ITEM_OFFSET);
  int step = 0;
  for (int tile = blockIdx.x; tile < of.tiles; tile += gridDim.x) {
    const Items items(of, tile);
    const int pair = tile / of.tiles_of_head, batch = pair / of.heads_kv, head = pair % of.heads_kv;
    u64 next = items.count > 0 ? items.at[0] : 0;
    for (int i = 0; i < items.count; i++, step++) {
      const int stage = stage_of(step);
      const u64 item = next;
      if (i + 1 < items.count) next = items.at[i + 1];
      barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);
      ring[stage] = item;
      barrier_expect(barriers.full(stage), STAGE);
      const u32 key = shared + stage * STAGE, value = key + K_BYTES;
      const int token = (int)(u32)item * KEYS;
#pragma unroll
      for (int c = 0; c < chunks_of(DIM); c++) tma_load(key + c * KEYS * SWIZZLE, map_key, barriers.full(stage), SWIZZLE / 2 * c, token, 0, batch, head);
#pragma unroll
      for (int c = 0; c < chunks_of(DIM_V); c++) tma_load(value + c * KEYS * SWIZZLE, map_value, barriers.full(stage), SWIZZLE / 2 * c, token, 0, batch, head);
    }
  }
}

// The two rows that a lane holds of a warp's sixteen: `lane / 4` and eight further down.
struct Rows {
  int at[2][PLACE];              // token, head of all
  bool exists[2];
  int seen[2];                   // keys that it sees of those that are listed, or all
  u32 bits[2];                   // of its query, in items
  u32 mine;                      // of the warp's queries
  int batch, head_kv;

  DEVICE Rows(const Union& of, int tile, int warp, int lane) {
    const int pair = tile / of.tiles_of_head, first = tile % of.tiles_of_head * QUERIES, own = warp / PARTS * WARP_QUERIES;
    batch = pair / of.heads_kv;
    head_kv = pair % of.heads_kv;
    mine = own < QUERIES ? ((1u << WARP_QUERIES) - 1) << own : 0u;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = lane / 4 + 8 * r, query = GROUP < 16 ? row / GROUP : 0, head = GROUP < 16 ? row % GROUP : warp % PARTS * 16 + row;
      at[r][0] = first + own + query;
      at[r][1] = head_kv * GROUP + head;
      exists[r] = own < QUERIES && query < WARP_QUERIES && head < GROUP && at[r][0] < of.queries;
      seen[r] = keys_before(at[r][0], of.keys, of.origin, of.step);
      bits[r] = exists[r] ? 1u << own + query : 0u;
    }
  }

  // How many of the first keys of an item a row sees; rows that do not exist see what they like.
  DEVICE int limit(u64 item, int r) const {
    if (!exists[r]) return KEYS;
    return (u32)(item >> 32) & bits[r] ? seen[r] - (int)(u32)item * KEYS : 0;
  }
};

// Sets the scores to -inf that an item does not show, of its columns from the first one on.
template <int N> DEVICE void hide(float (&s)[N], const Rows& rows, u64 item, int first, int lane) {
  const int limit[2] = {rows.limit(item, 0), rows.limit(item, 1)};
  if (!__any_sync(~0u, limit[0] < KEYS || limit[1] < KEYS)) return;
#pragma unroll
  for (int j = 0; j < N / 4; j++)
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (first + 8 * j + lane % 4 * 2 + e >= limit[r]) s[4 * j + 2 * r + e] = NEG_INF;
}

// The fragments of the rows of a lane, from memory; zeros where there is none.
template <int N> DEVICE void load_rows(const u16* first, const u16* second, const bool (&exists)[2], int lane, u32 (&fragments)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int column = i / 4 * 16 + (i >> 1 & 1) * 8 + lane % 4 * 2;
    fragments[i] = exists[i & 1] ? *(const u32*)((i & 1 ? second : first) + column) : 0u;
  }
}

// All tiles of a CTA, with a consumer for each warp.
template <class Consumer, class Params> DEVICE void run(const Params& params, const TensorMap& map_key, const TensorMap& map_value) {
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const Barriers barriers = {shared + BARRIER_OFFSET};
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(barriers.full(s), 1);
      barrier_init(barriers.empty(s), WARPS);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp >= WARPS) {
    give_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 32 * WARPS) produce(params.of, &map_key, &map_value, shared, barriers);
    return;
  }
  take_registers<CONSUMER_REGISTERS>();
  Consumer consumer = {params, shared, barriers, warp, (int)threadIdx.x % 32};
  int step = 0;
  for (int tile = blockIdx.x; tile < params.of.tiles; tile += gridDim.x) step = consumer.consume(tile, step);
}
