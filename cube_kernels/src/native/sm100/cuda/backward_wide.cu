// Gradients of attention to vectors of 136 to 256 elements, for sm_100a: of the queries, or, with INVERSE, of the keys and the values.
//
// As backward.cu. One sum takes half of tensor memory, so that rows sweep over the columns once for each gradient: of keys and
// values first `second`, which needs no dP, and then `first`. Columns come in chunks of 64 elements in the order of their use; those
// of which scores were made come again to be multiplied with the slopes.
//
// Warps: as there.
//
// Tensor memory, in columns: S at 0, dP at 128, the sum at 256. What a sum is made of, slopes or in the sweep for `second` weights, takes
// the first half of each 64 columns of dP. Scores of the next step are made as soon as those of this one are read.
//
// Shared memory: both tensors of the rows; STAGES chunks of the columns; statistics of a step; tiles; barriers.

constexpr int FIRST_TILE = chunks_of(DIM) * CHUNK, SECOND_TILE = chunks_of(DIM_V) * CHUNK;
constexpr int COLUMN_OFFSET = FIRST_TILE + SECOND_TILE;
constexpr int STATISTICS_BYTES = INVERSE ? 128 * 16 : 0;      // see query_statistics.cuh
constexpr int STATISTICS_OFFSET = COLUMN_OFFSET + STAGES * CHUNK;
constexpr int WORK_OFFSET = STATISTICS_OFFSET + STATISTICS_BYTES;
constexpr int BARRIER_OFFSET = WORK_OFFSET + SLOTS * sizeof(Work);
constexpr int SHARED_BYTES = BARRIER_OFFSET + 8 * (16 + 2 * STAGES);
static_assert(SHARED_BYTES == SHARED_MEMORY, "schedule.rs counts the same");

constexpr int COMPUTING = 8;                                  // warps from 0 on
constexpr int MULTIPLYING = 8, LOADING = 9, REPAIRING = 10;   // warps
constexpr u32 SCORES_COLUMN = 0, PRODUCT_COLUMN = 128, SUM_COLUMN = 256;

extern __shared__ __align__(1024) u8 memory[];

// Who arrives: TMA with its bytes, the completion of products, or one lane of each of so many warps.
struct Barriers {
  u32 base;
  DEVICE u32 at(int i) const { return base + 8 * i; }
  DEVICE u32 rows_full() const { return at(0); }                                 // bytes
  DEVICE u32 rows_empty() const { return at(1); }                                // products
  DEVICE u32 scores_full() const { return at(2); }                               // products
  DEVICE u32 product_full() const { return at(3); }                              // products: dP, or that its place is free
  DEVICE u32 scores_read() const { return at(4); }                               // 8
  DEVICE u32 slopes_full() const { return at(5); }                               // 8
  DEVICE u32 sums_full() const { return at(6); }                                 // products
  DEVICE u32 work_full(int slot) const { return at(7 + slot); }                  // the producer
  DEVICE u32 work_empty(int slot) const { return at(9 + slot); }                 // 8, 2 that repair, and who multiplies
  DEVICE u32 results_full(int slot) const { return at(11 + slot); }              // 8
  DEVICE u32 tensor_memory() const { return at(13); }                            // no barrier: its address
  DEVICE u32 statistics_full() const { return at(14); }                          // bytes
  DEVICE u32 statistics_empty() const { return at(15); }                         // 8
  DEVICE u32 full(int stage) const { return at(16 + stage); }                    // bytes
  DEVICE u32 empty(int stage) const { return at(16 + STAGES + stage); }          // products

  DEVICE void start() const {
    barrier_init(rows_full(), 1);
    barrier_init(rows_empty(), 1);
    barrier_init(scores_full(), 1);
    barrier_init(product_full(), 1);
    barrier_init(scores_read(), COMPUTING);
    barrier_init(slopes_full(), COMPUTING);
    barrier_init(sums_full(), 1);
    for (int slot = 0; slot < SLOTS; slot++) {
      barrier_init(work_full(slot), 1);
      barrier_init(work_empty(slot), COMPUTING + 3);
      barrier_init(results_full(slot), COMPUTING);
    }
    barrier_init(statistics_full(), 1);
    barrier_init(statistics_empty(), COMPUTING);
    for (int i = 0; i < STAGES; i++) barrier_init(full(i), 1), barrier_init(empty(i), 1);
    barrier_init_fence();
  }
};

// The gradients, in the order of their sweeps.
enum Sweep { SECOND, FIRST, SWEEPS };
constexpr int FIRST_SWEEP = INVERSE ? SECOND : FIRST;

DEVICE int steps_of_pass(const Params& params, const Tile& tile) { return tile.steps + additional_steps(params.additional); }
DEVICE int steps_of_sweep(const Params& params, const Tile& tile) { return passes(params) * steps_of_pass(params, tile); }

// ---- loads: one thread, which also finds the tiles that all work on

// The columns of a step.
struct Columns { int head, box[BLOCKS][3], statistics[3]; bool more; };

// The steps of a sweep, one after the other.
struct Steps {
  Walk walk;
  int pass = 0, i = 0;

  DEVICE void take(const Params& params, const Tile& tile, Columns& columns) {
    if (i == steps_of_pass(params, tile)) i = 0, pass++;
    if (i == 0) walk.start(tile, 0);
    columns.head = column_head(params, tile, pass);
    columns.more = ADDITIONAL && i >= tile.steps;
#pragma unroll
    for (int a = 0; a < 3; a++)
      columns.statistics[a] = tile.group[a] * params.space.axes[a].pitch + tile.column[a] + walk.at[a] * column_extent(a);
    if (columns.more) additional_boxes(tile, (i - tile.steps) * BLOCK, columns.box);
    else column_boxes(params.space, tile, walk, columns.box);
    i++;
  }
};

struct Loader {
  u32 shared;
  Barriers b;
  Place place;
  int step;                      // of all sweeps

  DEVICE void load(const TensorMap* map, int chunks, const Columns& columns) {
    for (int c = 0; c < chunks; c++, place.next()) {
      const u32 full = b.full(place.stage);
      barrier_wait(b.empty(place.stage), place.parity ^ 1);
      barrier_expect(full, CHUNK);
      const int (&at)[3] = columns.box[0];
      tma_load(shared + COLUMN_OFFSET + place.stage * CHUNK, map, full, 64 * c, at[2], at[1], at[0], columns.head);
    }
  }
  DEVICE void load_first(const Maps& maps, const Columns& columns) { load(columns.more ? maps.more_key : maps.column_first, chunks_of(DIM), columns); }
  DEVICE void load_second(const Maps& maps, const Columns& columns) { load(columns.more ? maps.more_value : maps.column_second, chunks_of(DIM_V), columns); }

  // Logsumexp and delta of columns that are queries.
  DEVICE void load_statistics(const Params& params, const Maps& maps, const Tile& tile, const Columns& columns) {
    if constexpr (!INVERSE) return;
    barrier_wait(b.statistics_empty(), step & 1 ^ 1);
    barrier_expect(b.statistics_full(), STATISTICS_BYTES);
    const int (&at)[3] = columns.statistics;
    tma_load(shared + STATISTICS_OFFSET, maps.statistics, b.statistics_full(), 0, at[2], at[1], at[0], tile.batch * params.heads + columns.head);
    step++;
  }

  DEVICE void sweep(const Params& params, const Maps& maps, const Tile& tile, bool is_first) {
    const int count = steps_of_sweep(params, tile);
    Steps steps;
    Columns columns, next;
    steps.take(params, tile, columns);
    load_first(maps, columns);
    load_statistics(params, maps, tile, columns);
    if (is_first) load_second(maps, columns);
    for (int i = 1; i <= count; i++) {
      if (i < count) {
        steps.take(params, tile, next);
        load_first(maps, next);
      }
      if (is_first) load_first(maps, columns);
      else load_second(maps, columns);
      if (i == count) break;
      load_statistics(params, maps, tile, next);
      if (is_first) load_second(maps, next);
      columns = next;
    }
  }

  DEVICE void run(const Params& params, const Maps& maps, Work* slots) {
    const Space& space = params.space;
    int tiles = 0;
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
#pragma unroll 1
      for (int of = FIRST_SWEEP; of < SWEEPS; of++) sweep(params, maps, tile, of == FIRST);
    }
    barrier_wait(b.work_empty(slot_of(tiles)), parity_of_slot(tiles) ^ 1);
    slots[slot_of(tiles)].tile.steps = 0;
    barrier_arrive(b.work_full(slot_of(tiles)));
  }
};

// ---- products: one thread

struct Multiplier {
  u32 shared, tmem;
  Barriers b;
  Place place;
  int step;                      // of all sweeps

  DEVICE u32 chunk() const { return shared + COLUMN_OFFSET + place.stage * CHUNK; }
  DEVICE void wait_chunk() const { barrier_wait(b.full(place.stage), place.parity); }
  DEVICE void free_chunk() { mma_commit(b.empty(place.stage)), place.next(); }

  // Dot products of rows and of columns of N elements.
  template <int N> DEVICE void multiply(u32 d, u32 rows) {
#pragma unroll
    for (int c = 0; c < chunks_of(N); c++) {
      wait_chunk();
      add_dot_products<N>(c, d, vectors(rows + c * CHUNK), vectors(chunk()));
      free_chunk();
    }
  }
  // What slopes or weights add to a sum of N elements.
  template <int N> DEVICE void add(bool is_first) {
#pragma unroll
    for (int c = 0; c < chunks_of(N); c++) {
      wait_chunk();
      add_weighted_chunk<N, 64>(c, tmem + SUM_COLUMN, tmem + PRODUCT_COLUMN, summed_rows(chunk()), is_first);
      free_chunk();
    }
  }
  DEVICE void begin_scores() {
    multiply<DIM>(tmem + SCORES_COLUMN, shared);
    mma_commit(b.scores_full());
  }
  template <int OF> DEVICE void begin_product() {
    if constexpr (OF == FIRST) multiply<DIM_V>(tmem + PRODUCT_COLUMN, shared + FIRST_TILE);
    mma_commit(b.product_full());
  }

  template <int OF> DEVICE void sweep(int count) {
    begin_scores();
    begin_product<OF>();
    for (int i = 0; i < count; i++, step++) {
      const bool more = i + 1 < count;
      barrier_wait(b.scores_read(), step & 1);
      tmem_fence_after();
      if (more) begin_scores();
      barrier_wait(b.slopes_full(), step & 1);
      tmem_fence_after();
      add<OF == FIRST ? DIM : DIM_V>(i == 0);
      if (more) begin_product<OF>();
    }
    mma_commit(b.sums_full());
  }

  DEVICE void run(const Params& params, const Work* slots) {
    for (int tiles = 0;; tiles++) {
      const Tile& tile = slots[slot_of(tiles)].tile;
      barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
      if (tile.steps == 0) break;
      const int count = steps_of_sweep(params, tile);
      barrier_wait(b.rows_full(), tiles & 1);
      if constexpr (INVERSE) sweep<SECOND>(count);
      sweep<FIRST>(count);
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
  int step, sweeps;              // so far

  DEVICE void arrive(u32 barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  // Of column `j` of this half: logsumexp and delta.
  DEVICE float2 statistics(int j) const { return load_float2(shared + STATISTICS_OFFSET + (64 * half + j) * 16 + 8); }

  // Turns S into P.
  DEVICE void weigh(float (&x)[64], float scale, float lse, const Seen<2>& seen) const {
    const u32 scores = mine + SCORES_COLUMN + 64 * half;
    barrier_wait(b.scores_full(), step & 1);
    tmem_fence_after();
    tmem_load(x, scores);
    tmem_load(x + 32, scores + 32);
    if constexpr (INVERSE) barrier_wait(b.statistics_full(), step & 1);
    tmem_wait_loads();
    pin(x);
    tmem_fence_before();
    arrive(b.scores_read());
#pragma unroll
    for (int j = 0; j < 64; j++) x[j] = exp2_approx(fmaf(x[j], scale, INVERSE ? -statistics(j).x : -lse));
    seen.apply(x, 0, 0.f);
  }

  // Hands over what a sum is made of: of `first` dS, which is made of P and dP; of `second` P.
  DEVICE void slope(const float (&x)[64], bool is_first, float delta) const {
    const u32 products = mine + PRODUCT_COLUMN + 64 * half;
    barrier_wait(b.product_full(), step & 1);
    tmem_fence_after();
#pragma unroll
    for (int c = 0; c < 64; c += 32) {
      u32 packed[16];
      if (is_first) {
        float product[32];
        tmem_load(product, products + c);
        tmem_wait_loads();
        pin(product);
#pragma unroll
        for (int j = 0; j < 32; j++) product[j] = x[c + j] * (product[j] - (INVERSE ? statistics(c + j).y : delta));
#pragma unroll
        for (int j = 0; j < 16; j++) packed[j] = pack(product[2 * j], product[2 * j + 1]);
      } else {
#pragma unroll
        for (int j = 0; j < 16; j++) packed[j] = pack(x[c + 2 * j], x[c + 2 * j + 1]);
      }
      // The first half goes where dP has been read already.
      tmem_store16(products + c / 2, packed);
    }
    tmem_wait_stores();
    tmem_fence_before();
    arrive(b.slopes_full());
    if constexpr (INVERSE) arrive(b.statistics_empty());
  }

  // A sweep, and the sums that it gives; zero, or NaN where one of them is infinite or NaN.
  DEVICE float sweep(const Params& params, const Tile& tile, const int (&at)[3], const View& view, const float2& row, bool is_first) {
    const int steps = uniform(tile.steps), all = uniform(steps_of_pass(params, tile));
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
        weigh(x, params.scale_log2, row.x, seen);
        slope(x, is_first, row.y);
      }
    }
    barrier_wait(b.sums_full(), sweeps++ & 1);
    tmem_fence_after();
    const i64 place = row_index(params.space, tile, at);
    const bool exists = row_exists(tile, at);
    const u32 sums = mine + SUM_COLUMN;
    float poison;
    if (is_first) poison = store_sums<DIM>((u16*)params.first + place * DIM, sums, params.scale, exists, half);
    else poison = store_sums<DIM_V>((u16*)params.second + place * DIM_V, sums, 1.f, exists, half);
    // The products that begin the next sum come after an arrival, which is behind this fence.
    tmem_fence_before();
    return exists ? poison : 0.f;
  }

  DEVICE void run(const Params& params, Work* slots) {
    for (int tiles = 0;; tiles++) {
      Work& work = slots[slot_of(tiles)];
      const Tile& tile = work.tile;
      barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
      if (uniform(tile.steps) == 0) break;
      int at[3];
      row_of_warpgroup(tile, 0, threadIdx.x % 128, at);
      const float2 row = row_statistics(params, tile, at);
      View view;
      view.start_tile(params.space, tile, at);
      float poison = 0.f;
#pragma unroll 1
      for (int of = FIRST_SWEEP; of < SWEEPS; of++) poison += sweep(params, tile, at, view, row, of == FIRST);
      const u32 broken = __ballot_sync(~0u, !(poison == 0.f));
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
    Computer computer = {shared, lane_of(tmem), b, warp / 4, 0, 0};
    computer.run(params, slots);
  } else {
    give_registers<504 - 2 * COMPUTE_REGISTERS>();
    const Maps maps = {&map_row_first, &map_row_second, &map_column_first, &map_column_second, &map_more_key, &map_more_value, &map_statistics};
    if (warp == MULTIPLYING && elect_one()) Multiplier{shared, tmem, b, {}, 0}.run(params, slots);
    if (warp == LOADING && elect_one()) Loader{shared, b, {}, 0}.run(params, maps, slots);
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
