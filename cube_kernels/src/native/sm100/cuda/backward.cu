// Gradients of attention, for sm_100a: of the queries, or, with INVERSE, of the keys and the values.
//
// Rows, which a CTA keeps, and columns, which it sweeps over, are two tensors each:
//
//              first    second          gradients
//   queries    query    dout            first = dS K            (rows: queries, columns: keys)
//   keys       key      value           first = dS^T Q, second = P^T dout           (INVERSE)
//
//   S = first first^T, P = exp(S - lse), dP = second second^T, dS = P (dP - delta)
//
// Both ways compute S and dP, so that no gradient is summed in memory: a pass writes each row once, and its results do not
// depend on the order of anything.
//
// A CTA stays for many tiles of 128 rows, an N-D box of them, and sweeps over the columns that they see in boxes of 128, with the
// logsumexp and delta of columns that are queries. CTAs take tiles as they come to them.
//
// Warps: 0..3 and 4..7 weights and slopes of the first and the second 64 columns, a row a thread, and results; 8 issues products,
// 9 loads; 10 and 11 compute rows again that became infinite or NaN.
//
// Tensor memory, in columns: S at 0; dP at 128, of queries at 128 and 256 in turn, so that both products of a step run ahead of the
// slopes of the one before; sums of `second` at 256, of `first` at 384. Weights take the first half of each 64 columns of S,
// slopes those of dP. The next products overwrite what products issued before them read: products of a thread are done in order.
//
// Shared memory: both tensors of the rows; STAGES of those of the columns; statistics of these; tiles; barriers.
//
// Compile-time: those of tile.cuh, DIM, DIM_V, ADDITIONAL, STAGES, and COMPUTE_REGISTERS of a thread of warps 0..7; other warps have what
// these leave of 504: 384 threads are launched with 168 each.

constexpr int FIRST_TILE = chunks_of(DIM) * CHUNK, SECOND_TILE = chunks_of(DIM_V) * CHUNK;
constexpr int COLUMN_BYTES = FIRST_TILE + SECOND_TILE;
constexpr int COLUMN_OFFSET = FIRST_TILE + SECOND_TILE;
constexpr int STATISTICS_STAGE = INVERSE ? 128 * 16 : 0;      // see query_statistics.cuh
constexpr int STATISTICS_OFFSET = COLUMN_OFFSET + STAGES * COLUMN_BYTES;
constexpr int WORK_OFFSET = STATISTICS_OFFSET + STAGES * STATISTICS_STAGE;
constexpr int BARRIER_OFFSET = WORK_OFFSET + SLOTS * sizeof(Work);
constexpr int SHARED_BYTES = BARRIER_OFFSET + 8 * (14 + 2 * STAGES);
static_assert(SHARED_BYTES == SHARED_MEMORY, "schedule.rs counts the same");

constexpr int COMPUTING = 8;                                  // warps from 0 on
constexpr int MULTIPLYING = 8, LOADING = 9, REPAIRING = 10;   // warps
constexpr u32 SCORES_COLUMN = 0, SECOND_COLUMN = 256, FIRST_COLUMN = 384;
DEVICE constexpr u32 product_column(int step) { return INVERSE ? 128 : 128 + 128 * (step & 1); }

extern __shared__ __align__(1024) u8 memory[];

// Who arrives: TMA with its bytes, the completion of products, or one lane of each of so many warps.
struct Barriers {
  u32 base;
  DEVICE u32 at(int i) const { return base + 8 * i; }
  DEVICE u32 rows_full() const { return at(0); }                                 // bytes
  DEVICE u32 rows_empty() const { return at(1); }                                // products
  DEVICE u32 scores_full() const { return at(2); }                               // products
  DEVICE u32 product_full() const { return at(3); }                              // products
  DEVICE u32 weights_full() const { return at(4); }                              // 8: scores are read, with INVERSE weights written
  DEVICE u32 slopes_full() const { return at(5); }                               // 8
  DEVICE u32 sums_full() const { return at(6); }                                 // products
  DEVICE u32 work_full(int slot) const { return at(7 + slot); }                  // the producer
  DEVICE u32 work_empty(int slot) const { return at(9 + slot); }                 // 8, 2 that repair, and who multiplies
  DEVICE u32 results_full(int slot) const { return at(11 + slot); }              // 8
  DEVICE u32 tensor_memory() const { return at(13); }                            // no barrier: its address
  DEVICE u32 full(int stage) const { return at(14 + stage); }                    // bytes
  DEVICE u32 empty(int stage) const { return at(14 + STAGES + stage); }          // products, and who reads statistics: 8

  DEVICE void start() const {
    barrier_init(rows_full(), 1);
    barrier_init(rows_empty(), 1);
    barrier_init(scores_full(), 1);
    barrier_init(product_full(), 1);
    barrier_init(weights_full(), COMPUTING);
    barrier_init(slopes_full(), COMPUTING);
    barrier_init(sums_full(), 1);
    for (int slot = 0; slot < SLOTS; slot++) {
      barrier_init(work_full(slot), 1);
      barrier_init(work_empty(slot), COMPUTING + 3);
      barrier_init(results_full(slot), COMPUTING);
    }
    for (int i = 0; i < STAGES; i++) barrier_init(full(i), 1), barrier_init(empty(i), INVERSE ? 1 + COMPUTING : 1);
    barrier_init_fence();
  }
};

DEVICE int stage_of(int step) { return step % STAGES; }
DEVICE u32 parity_of(int step) { return step / STAGES & 1; }

DEVICE int steps_of_pass(const Params& params, const Tile& tile) { return tile.steps + additional_steps(params.additional); }

// ---- loads: one thread, which also finds the tiles that all work on

// Logsumexp and delta of the queries that a step has as columns.
DEVICE void load_statistics(const Params& params, const Tile& tile, const TensorMap* map, u32 destination, u32 barrier, int head, const Walk& walk) {
  int at[3];
#pragma unroll
  for (int a = 0; a < 3; a++) at[a] = tile.group[a] * params.space.axes[a].pitch + tile.column[a] + walk.at[a] * column_extent(a);
  tma_load(destination, map, barrier, 0, at[2], at[1], at[0], tile.batch * params.heads + head);
}

DEVICE void produce(const Params& params, const Maps& maps, u32 shared, Work* slots, const Barriers& b) {
  const Space& space = params.space;
  int step = 0, tiles = 0;
  for (int index = blockIdx.x; index < space.tiles; index = gridDim.x + atomicAdd(params.taken, 1)) {
    const int slot = slot_of(tiles);
    const Tile& tile = slots[slot].tile;
    barrier_wait(b.work_empty(slot), parity_of_slot(tiles) ^ 1);
    decode_tile(space, params.shift, 0, index, slots[slot].tile);
    if (tile.steps == 0) continue;
    barrier_arrive(b.work_full(slot));
    barrier_wait(b.rows_empty(), tiles & 1 ^ 1);
    tiles++;
    int at[3];
    row_box(space, tile, 0, at);
    barrier_expect(b.rows_full(), FIRST_TILE + SECOND_TILE);
    load_box(shared, maps.row_first, b.rows_full(), chunks_of(DIM), 128, at, tile.head);
    load_box(shared + FIRST_TILE, maps.row_second, b.rows_full(), chunks_of(DIM_V), 128, at, tile.head);
    for (int pass = 0; pass < passes(params); pass++) {
      const int head = column_head(params, tile, pass);
      Walk walk;
      walk.start(tile, 0);
      for (int i = 0; i < steps_of_pass(params, tile); i++, step++) {
        const int stage = stage_of(step);
        const u32 full = b.full(stage), to = shared + COLUMN_OFFSET + stage * COLUMN_BYTES;
        barrier_wait(b.empty(stage), parity_of(step) ^ 1);
        barrier_expect(full, COLUMN_BYTES + STATISTICS_STAGE);
        if constexpr (INVERSE)
          load_statistics(params, tile, maps.statistics, shared + STATISTICS_OFFSET + stage * STATISTICS_STAGE, full, head, walk);
        const bool more = ADDITIONAL && i >= tile.steps;
        int column[BLOCKS][3];
        if (more) additional_boxes(tile, (i - tile.steps) * BLOCK, column);
        else column_boxes(space, tile, walk, column);
        load_box(to, more ? maps.more_key : maps.column_first, full, chunks_of(DIM), 128, column[0], head);
        load_box(to + FIRST_TILE, more ? maps.more_value : maps.column_second, full, chunks_of(DIM_V), 128, column[0], head);
      }
    }
  }
  barrier_wait(b.work_empty(slot_of(tiles)), parity_of_slot(tiles) ^ 1);
  slots[slot_of(tiles)].tile.steps = 0;
  barrier_arrive(b.work_full(slot_of(tiles)));
}

// ---- products: one thread

struct Multiplier {
  u32 shared, tmem;
  Barriers b;

  DEVICE u32 column(int step) const { return shared + COLUMN_OFFSET + stage_of(step) * COLUMN_BYTES; }

  // S of a step, and then dP.
  DEVICE void begin_scores(int step) const {
    barrier_wait(b.full(stage_of(step)), parity_of(step));
    dot_products<DIM>(tmem + SCORES_COLUMN, vectors(shared), vectors(column(step)));
    mma_commit(b.scores_full());
  }
  DEVICE void begin_product(int step) const {
    dot_products<DIM_V>(tmem + product_column(step), vectors(shared + FIRST_TILE), vectors(column(step) + FIRST_TILE));
    mma_commit(b.product_full());
  }

  DEVICE void run(const Params& params, const Work* slots) const {
    int step = 0;
    for (int tiles = 0;; tiles++) {
      const Tile& tile = slots[slot_of(tiles)].tile;
      barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
      if (tile.steps == 0) break;
      const int end = step + passes(params) * steps_of_pass(params, tile);
      barrier_wait(b.rows_full(), tiles & 1);
      begin_scores(step);
      begin_product(step);
      for (bool is_first = true; step < end; step++, is_first = false) {
        const bool more = step + 1 < end;
        barrier_wait(b.weights_full(), step & 1);
        tmem_fence_after();
        // second += P^T dout
        if constexpr (INVERSE) add_weighted<DIM_V, 64>(tmem + SECOND_COLUMN, tmem + SCORES_COLUMN, summed_rows(column(step) + FIRST_TILE), is_first);
        if (more) begin_scores(step + 1);
        if (more && !INVERSE) begin_product(step + 1);
        barrier_wait(b.slopes_full(), step & 1);
        tmem_fence_after();
        // first += dS K or dS^T Q
        add_weighted<DIM, 64>(tmem + FIRST_COLUMN, tmem + product_column(step), summed_rows(column(step)), is_first);
        mma_commit(b.empty(stage_of(step)));
        if (more && INVERSE) begin_product(step + 1);
      }
      mma_commit(b.sums_full());
      mma_commit(b.rows_empty());
      barrier_arrive(b.work_empty(slot_of(tiles)));
    }
  }
};

// ---- weights, slopes and results: two warpgroups, half a row a thread

struct Computer {
  u32 shared, mine;              // tensor memory of this thread's lane
  Barriers b;
  int half;                      // of the columns

  DEVICE void arrive(u32 barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  // Of column `j` of this half: logsumexp and delta.
  DEVICE float2 statistics(int step, int j) const {
    return load_float2(shared + STATISTICS_OFFSET + stage_of(step) * STATISTICS_STAGE + (64 * half + j) * 16 + 8);
  }

  // Turns S into P, and with INVERSE hands it over.
  DEVICE void weigh(float (&x)[64], int step, float scale, float lse, const Seen<2>& seen) const {
    const u32 scores = mine + SCORES_COLUMN + 64 * half;
    barrier_wait(b.scores_full(), step & 1);
    tmem_fence_after();
    tmem_load(x, scores);
    tmem_load(x + 32, scores + 32);
    // The statistics came with the queries that these scores are made of.
    if constexpr (INVERSE) barrier_wait(b.full(stage_of(step)), parity_of(step));
    tmem_wait_loads();
    pin(x);
    if constexpr (!INVERSE) {
      tmem_fence_before();
      arrive(b.weights_full());
    }
#pragma unroll
    for (int j = 0; j < 64; j++) x[j] = exp2_approx(fmaf(x[j], scale, INVERSE ? -statistics(step, j).x : -lse));
    seen.apply(x, 0, 0.f);
    if constexpr (INVERSE) {
#pragma unroll
      for (int c = 0; c < 64; c += 32) {
        u32 weights[16];
#pragma unroll
        for (int j = 0; j < 16; j++) weights[j] = pack(x[c + 2 * j], x[c + 2 * j + 1]);
        tmem_store16(scores + c / 2, weights);
      }
      tmem_wait_stores();
      tmem_fence_before();
      arrive(b.weights_full());
    }
  }

  // Makes dS of P and dP, and hands it over.
  DEVICE void slope(const float (&x)[64], int step, float delta) const {
    const u32 products = mine + product_column(step) + 64 * half;
    barrier_wait(b.product_full(), step & 1);
    tmem_fence_after();
#pragma unroll
    for (int c = 0; c < 64; c += 32) {
      float product[32];
      u32 slopes[16];
      tmem_load(product, products + c);
      tmem_wait_loads();
      pin(product);
#pragma unroll
      for (int j = 0; j < 32; j++) product[j] = x[c + j] * (product[j] - (INVERSE ? statistics(step, c + j).y : delta));
#pragma unroll
      for (int j = 0; j < 16; j++) slopes[j] = pack(product[2 * j], product[2 * j + 1]);
      // The first half of the slopes goes where dP has been read already.
      tmem_store16(products + c / 2, slopes);
    }
    tmem_wait_stores();
    tmem_fence_before();
    arrive(b.slopes_full());
    if constexpr (INVERSE) arrive(b.empty(stage_of(step)));
  }

  // Writes the rows; gives whether this one has to be computed again.
  DEVICE bool finish(const Params& params, const Tile& tile) const {
    int at[3];
    row_of_warpgroup(tile, 0, threadIdx.x % 128, at);
    const i64 row = row_index(params.space, tile, at);
    const bool exists = row_exists(tile, at);
    float poison = store_sums<DIM>((u16*)params.first + row * DIM, mine + FIRST_COLUMN, params.scale, exists, half);
    if constexpr (INVERSE) poison += store_sums<DIM_V>((u16*)params.second + row * DIM_V, mine + SECOND_COLUMN, 1.f, exists, half);
    // The first weights and slopes of the next tile are behind this fence, and so are the products that begin new sums.
    tmem_fence_before();
    return exists && !(poison == 0.f);
  }

  DEVICE void run(const Params& params, Work* slots) const {
    int step = 0;
    for (int tiles = 0;; tiles++) {
      Work& work = slots[slot_of(tiles)];
      const Tile& tile = work.tile;
      barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
      const int steps = uniform(tile.steps), all = uniform(steps_of_pass(params, tile));
      if (steps == 0) break;
      int at[3];
      row_of_warpgroup(tile, 0, threadIdx.x % 128, at);
      const float2 row = row_statistics(params, tile, at);
      View view;
      view.start_tile(params.space, tile, at);
#pragma unroll 1
      for (int pass = 0; pass < passes(params); pass++) {
        Walk walk;
        walk.start(tile, 0);
#pragma unroll 1
        for (int i = 0; i < all; i++, step++) {
          Seen<2> seen;
          seen.aim(view, walk, ADDITIONAL && i >= steps, params.additional - (i - steps) * BLOCK, 2 * half);
          walk.next(tile);
          float x[64];
          weigh(x, step, params.scale_log2, row.x, seen);
          slope(x, step, row.y);
        }
      }
      barrier_wait(b.sums_full(), tiles & 1);
      tmem_fence_after();
      const u32 broken = __ballot_sync(~0u, finish(params, tile));
      if (threadIdx.x % 32 == 0) work.broken[threadIdx.x / 32] = broken;
      arrive(b.results_full(slot_of(tiles)));
      arrive(b.work_empty(slot_of(tiles)));
    }
  }
};

extern "C" __global__ void __launch_bounds__(384, 1)
attention_backward(const __grid_constant__ TensorMap map_row_first, const __grid_constant__ TensorMap map_row_second,
                   const __grid_constant__ TensorMap map_column_first, const __grid_constant__ TensorMap map_column_second,
                   const __grid_constant__ TensorMap map_more_key, const __grid_constant__ TensorMap map_more_value,
                   const __grid_constant__ TensorMap map_statistics, const __grid_constant__ Params params) {
  const u32 shared = shared_address(memory);
  const Barriers b = {shared + BARRIER_OFFSET};
  Work* slots = (Work*)(memory + WORK_OFFSET);
  const int warp = uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    b.start();
    tma_prefetch(&map_row_first);
    tma_prefetch(&map_row_second);
    tma_prefetch(&map_column_first);
    tma_prefetch(&map_column_second);
  }
  if (warp == MULTIPLYING) {
    tmem_alloc(b.tensor_memory(), 512);
    tmem_relinquish();
    tmem_fence_before();
  }
  __syncthreads();
  tmem_fence_after();
  const u32 tmem = load_word(b.tensor_memory());
  if (warp < COMPUTING) {
    take_registers<COMPUTE_REGISTERS>();
    const Computer computer = {shared, lane_of(tmem), b, warp / 4};
    computer.run(params, slots);
  } else {
    give_registers<504 - 2 * COMPUTE_REGISTERS>();
    const Maps maps = {&map_row_first, &map_row_second, &map_column_first, &map_column_second, &map_more_key, &map_more_value, &map_statistics};
    if (warp == MULTIPLYING && elect_one()) Multiplier{shared, tmem, b}.run(params, slots);
    if (warp == LOADING && elect_one()) produce(params, maps, shared, slots, b);
    if (warp >= REPAIRING) repair(params, slots, b, warp - REPAIRING);
    // The other lanes wait here, so that the warp is whole again.
    __syncwarp();
  }
  // Every product was waited for by who reads its results.
  tmem_fence_before();
  __syncthreads();
  if (warp == MULTIPLYING) {
    tmem_fence_after();
    tmem_free(tmem, 512);
  }
}
