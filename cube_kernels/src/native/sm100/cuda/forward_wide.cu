// Attention forward with logsumexp for vectors of 136 to 256 elements, for sm_100a.
//
// As forward.cu, with one tile of 128 queries a CTA, whose sums take half of tensor memory. What takes turns are steps: scores of the
// next step are made while those of this one become weights, and the products of the weights follow.
//
// Warps: 0..3 softmax, a row a thread; 4..7 correction; 8 issues products, 9 loads; 10 computes rows again.
//
// Tensor memory, in columns: scores of even and odd steps at 0 and 128, whose lower halves their weights take; sums at 256.
//
// Shared memory: Q; STAGES chunks of 64 elements of 128 keys or values in turn, in the order of their use; statistics of rows; tiles;
// barriers.
//
// Compile-time: those of forward.cu; other warps have what registers leave of 504: 384 threads are launched with 168 each.

constexpr int Q_TILE = chunks_of(DIM) * CHUNK;
constexpr int KV_OFFSET = Q_TILE;
constexpr int SCALE_OFFSET = KV_OFFSET + STAGES * CHUNK;      // float[128]: what a step multiplies older sums with
constexpr int FINAL_OFFSET = SCALE_OFFSET + 512;              // float[2 parities][2][128]: sum and maximum of a row
constexpr int WORK_OFFSET = FINAL_OFFSET + 2 * 2 * 512;
constexpr int BARRIER_OFFSET = WORK_OFFSET + SLOTS * sizeof(Work);
constexpr int SHARED_BYTES = BARRIER_OFFSET + 8 * (18 + 2 * STAGES);
static_assert(SHARED_BYTES == SHARED_MEMORY, "schedule.rs counts the same");

constexpr int MULTIPLYING = 8, LOADING = 9, REPAIRING = 10;    // warps
constexpr u32 OUT_COLUMN = 256;
DEVICE constexpr u32 scores_column(int step) { return 128 * (step & 1); }

extern __shared__ __align__(1024) u8 memory[];

// Who arrives: TMA with its bytes, the completion of products, or one lane of each of so many warps. Of what is there twice, steps
// take turns: scores of the next may be there while somebody still waits for those of this one.
struct Barriers {
  u32 base;
  DEVICE u32 at(int i) const { return base + 8 * i; }
  DEVICE u32 q_full() const { return at(0); }                                    // bytes
  DEVICE u32 q_empty() const { return at(1); }                                   // products
  DEVICE u32 scores_full(int step) const { return at(2 + (step & 1)); }          // products
  DEVICE u32 weights_full(int step) const { return at(4 + (step & 1)); }         // 4 of softmax, 4 of correction
  DEVICE u32 scale_full() const { return at(6); }                                // 4 of softmax
  DEVICE u32 final_full(int tiles) const { return at(7 + (tiles & 1)); }         // 4 of softmax
  DEVICE u32 out_full() const { return at(9); }                                  // products
  DEVICE u32 work_full(int slot) const { return at(10 + slot); }                 // the producer
  DEVICE u32 work_empty(int slot) const { return at(12 + slot); }                // 8, who repairs, and who multiplies
  DEVICE u32 results_full(int slot) const { return at(14 + slot); }              // 4 of correction
  DEVICE u32 tensor_memory() const { return at(16); }                            // no barrier: its address
  DEVICE u32 kv_full(int stage) const { return at(18 + stage); }                 // bytes
  DEVICE u32 kv_empty(int stage) const { return at(18 + STAGES + stage); }       // products

  DEVICE void start() const {
    barrier_init(q_full(), 1);
    barrier_init(q_empty(), 1);
    barrier_init(scale_full(), 4);
    barrier_init(out_full(), 1);
    for (int i = 0; i < 2; i++) {
      barrier_init(scores_full(i), 1);
      barrier_init(weights_full(i), 8);
      barrier_init(final_full(i), 4);
      barrier_init(work_full(i), 1);
      barrier_init(work_empty(i), 10);
      barrier_init(results_full(i), 4);
    }
    for (int i = 0; i < STAGES; i++) barrier_init(kv_full(i), 1), barrier_init(kv_empty(i), 1);
    barrier_init_fence();
  }
};

// Of barriers that steps use in turn.
DEVICE u32 parity_of(int step) { return step >> 1 & 1; }

DEVICE int steps_of(const Params& params, const Tile& tile) { return tile.steps + additional_steps(params.additional); }

// ---- loads: one thread, which also finds the tiles that all work on

struct Loader {
  u32 shared;
  Barriers b;
  Place place;

  // The chunks of a box of keys or values.
  DEVICE void load(const TensorMap* map, int chunks, const int (&at)[3], int head) {
    for (int c = 0; c < chunks; c++, place.next()) {
      const u32 full = b.kv_full(place.stage);
      barrier_wait(b.kv_empty(place.stage), place.parity ^ 1);
      barrier_expect(full, CHUNK);
      tma_load(shared + KV_OFFSET + place.stage * CHUNK, map, full, 64 * c, at[2], at[1], at[0], head);
    }
  }

  DEVICE void run(const Params& params, const Maps& maps, Work* slots) {
    const Space& space = params.space;
    int tiles = 0;
    for (int round = 0; round < rounds(space.tiles); round++) {
      const int index = tile_index(round);
      if (index >= space.tiles) continue;
      const Tile& tile = slots[slot_of(tiles)].tile;
      barrier_wait(b.work_empty(slot_of(tiles)), parity_of_slot(tiles) ^ 1);
      decode_tile(space, params.shift, 0, index, slots[slot_of(tiles)].tile);
      if (tile.steps == 0) continue;
      barrier_arrive(b.work_full(slot_of(tiles)));
      int at[3];
      row_box(space, tile, 0, at);
      barrier_wait(b.q_empty(), tiles & 1 ^ 1);
      tiles++;
      barrier_expect(b.q_full(), Q_TILE);
      load_box(shared, maps.query, b.q_full(), chunks_of(DIM), 128, at, tile.head);
      const int head = tile.head / params.group_size, steps = steps_of(params, tile);
      Walk walk;
      walk.start(tile, 0);
      int box[BLOCKS][3];
      // Keys of a step, and then the values of the one before it, whose box is kept.
      for (int i = 0; i <= steps; i++) {
        const int before[3] = {box[0][0], box[0][1], box[0][2]};
        if (i < steps) {
          const bool more = ADDITIONAL && i >= tile.steps;
          if (more) additional_boxes(tile, (i - tile.steps) * BLOCK, box);
          else column_boxes(space, tile, walk, box);
          load(more ? maps.more_key : maps.key, chunks_of(DIM), box[0], head);
        }
        if (i > 0) load(ADDITIONAL && i > tile.steps ? maps.more_value : maps.value, chunks_of(DIM_V), before, head);
      }
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

  DEVICE u32 chunk() const { return shared + KV_OFFSET + place.stage * CHUNK; }
  DEVICE void wait_chunk() const { barrier_wait(b.kv_full(place.stage), place.parity); }
  DEVICE void free_chunk() { mma_commit(b.kv_empty(place.stage)), place.next(); }

  DEVICE void begin_scores(int step) {
#pragma unroll
    for (int c = 0; c < chunks_of(DIM); c++) {
      wait_chunk();
      add_dot_products<DIM>(c, tmem + scores_column(step), vectors(shared + c * CHUNK), vectors(chunk()));
      free_chunk();
    }
    mma_commit(b.scores_full(step));
  }

  DEVICE void add_values(int step, bool is_first) {
#pragma unroll
    for (int c = 0; c < chunks_of(DIM_V); c++) {
      wait_chunk();
      add_weighted_chunk<DIM_V, 32>(c, tmem + OUT_COLUMN, tmem + scores_column(step), summed_rows(chunk()), is_first);
      free_chunk();
    }
    mma_commit(b.out_full());
  }

  DEVICE void run(const Params& params, const Work* slots) {
    int step = 0;
    for (int tiles = 0;; tiles++) {
      const Tile& tile = slots[slot_of(tiles)].tile;
      barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
      if (tile.steps == 0) break;
      const int end = step + steps_of(params, tile);
      barrier_wait(b.q_full(), tiles & 1);
      begin_scores(step);
      for (bool is_first = true; step < end; step++, is_first = false) {
        if (step + 1 < end) begin_scores(step + 1);
        barrier_wait(b.weights_full(step), parity_of(step));
        tmem_fence_after();
        add_values(step, is_first);
      }
      mma_commit(b.q_empty());
      barrier_arrive(b.work_empty(slot_of(tiles)));
    }
  }
};

// ---- softmax: a warpgroup, a row a thread

DEVICE void soften(const Params& params, u32 shared, u32 tmem, const Work* slots, const Barriers& b) {
  const int row = threadIdx.x % 128, lane = threadIdx.x % 32;
  const u32 mine = lane_of(tmem);
  int step = 0;
  for (int tiles = 0;; tiles++) {
    const Tile& tile = slots[slot_of(tiles)].tile;
    barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
    const int steps = uniform(tile.steps), all = uniform(steps_of(params, tile));
    if (steps == 0) break;
    int at[3];
    row_of_warpgroup(tile, 0, row, at);
    View view;
    view.start_tile(params.space, tile, at);
    Walk walk;
    walk.start(tile, 0);
    Softmax softmax;
    softmax.start();
#pragma unroll 1
    for (int i = 0; i < all; i++, step++) {
      Seen<4> seen;
      seen.aim(view, walk, ADDITIONAL && i >= steps, params.additional - (i - steps) * BLOCK, 0);
      walk.next(tile);
      const u32 scores = mine + scores_column(step);
      float x[64], most;
      barrier_wait(b.scores_full(step), parity_of(step));
      tmem_fence_after();
      load_scores(x, scores);
      seen.apply(x, 0, NEG_INF);
      most = softmax.largest(x, softmax.max);
#pragma unroll
      for (int c = 64; c < 128; c += 32) {
        float y[32];
        tmem_load(y, scores + c);
        tmem_wait_loads();
        pin(y);
        seen.apply(y, c / 32, NEG_INF);
        most = softmax.largest(y, most);
      }
      const float rescale = softmax.step(most, params.scale_log2);
      // The correction has read that of the last step.
      barrier_wait(b.weights_full(step - 1), parity_of(step - 1));
      store_float(shared + SCALE_OFFSET + row * 4, rescale);
      __syncwarp();
      if (lane == 0) barrier_arrive(b.scale_full());
      weigh_half(softmax, x, params.scale_log2, scores);
      softmax.add(x);
      load_scores(x, scores + 64);
      seen.apply(x, 2, NEG_INF);
      weigh_half(softmax, x, params.scale_log2, scores + 32);
      tmem_wait_stores();
      tmem_fence_before();
      __syncwarp();
      if (lane == 0) barrier_arrive(b.weights_full(step));
      softmax.add(x);
    }
    const u32 to = shared + FINAL_OFFSET + (tiles & 1) * 1024 + row * 4;
    store_float(to, softmax.sum);
    store_float(to + 512, softmax.max);
    __syncwarp();
    if (lane == 0) barrier_arrive(b.final_full(tiles));
    if (lane == 0) barrier_arrive(b.work_empty(slot_of(tiles)));
  }
}

// ---- correction: a warpgroup, a row a thread

DEVICE void correct(const Params& params, u32 shared, u32 tmem, Work* slots, const Barriers& b) {
  const int row = threadIdx.x % 128, lane = threadIdx.x % 32;
  const u32 sums = lane_of(tmem) + OUT_COLUMN;
  int step = 0;
  for (int tiles = 0;; tiles++) {
    Work& work = slots[slot_of(tiles)];
    const Tile& tile = work.tile;
    barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
    const int steps = uniform(tile.steps), all = uniform(steps_of(params, tile));
    if (steps == 0) break;
#pragma unroll 1
    for (int i = 0; i < all; i++, step++) {
      barrier_wait(b.scale_full(), step & 1);
      const float factor = load_float(shared + SCALE_OFFSET + row * 4);
      // Scores of this step were made ahead of the products of the last one.
      if (i > 0) barrier_wait(b.out_full(), step - 1 & 1);
      if (i > 0 && __any_sync(~0u, factor < 1.f)) {
        tmem_fence_after();
        rescale_sums(sums, factor);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(b.weights_full(step));
    }
    barrier_wait(b.final_full(tiles), tiles >> 1 & 1);
    const u32 from = shared + FINAL_OFFSET + (tiles & 1) * 1024 + row * 4;
    const float sum = load_float(from), max = load_float(from + 512);
    barrier_wait(b.out_full(), step - 1 & 1);
    tmem_fence_after();
    const u32 broken = __ballot_sync(~0u, finish(params, tile, sums, sum, max, 0));
    if (lane == 0) work.broken[threadIdx.x % 128 / 32] = broken;
    __syncwarp();
    if (lane == 0) barrier_arrive(b.results_full(slot_of(tiles)));
    if (lane == 0) barrier_arrive(b.work_empty(slot_of(tiles)));
  }
}

// ---- repair: a warp

DEVICE void repair(const Params& params, const Work* slots, const Barriers& b) {
  for (int tiles = 0;; tiles++) {
    const Work& work = slots[slot_of(tiles)];
    barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
    if (uniform(work.tile.steps) == 0) break;
    barrier_wait(b.results_full(slot_of(tiles)), parity_of_slot(tiles));
#pragma unroll 1
    for (int warp = 0; warp < 4; warp++) repair_rows(params, work.tile, 0, warp, uniform(work.broken[warp]));
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(b.work_empty(slot_of(tiles)));
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
attention_forward(const __grid_constant__ TensorMap map_query, const __grid_constant__ TensorMap map_key,
                  const __grid_constant__ TensorMap map_value, const __grid_constant__ TensorMap map_more_key,
                  const __grid_constant__ TensorMap map_more_value, const __grid_constant__ Params params) {
  const u32 shared = shared_address(memory);
  const Barriers b = {shared + BARRIER_OFFSET};
  Work* slots = (Work*)(memory + WORK_OFFSET);
  const int warp = uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    b.start();
    tma_prefetch(&map_query);
    tma_prefetch(&map_key);
    tma_prefetch(&map_value);
  }
  if (warp == MULTIPLYING) {
    tmem_alloc(b.tensor_memory(), 512);
    tmem_relinquish();
    tmem_fence_before();
  }
  __syncthreads();
  tmem_fence_after();
  const u32 tmem = load_word(b.tensor_memory());
  if (warp < 4) {
    take_registers<SOFTMAX_REGISTERS>();
    soften(params, shared, tmem, slots, b);
  } else if (warp < 8) {
    give_registers<CORRECTION_REGISTERS>();
    correct(params, shared, tmem, slots, b);
  } else {
    give_registers<504 - SOFTMAX_REGISTERS - CORRECTION_REGISTERS>();
    const Maps maps = {&map_query, &map_key, &map_value, &map_more_key, &map_more_value};
    if (warp == MULTIPLYING && elect_one()) Multiplier{shared, tmem, b, {}}.run(params, slots);
    if (warp == LOADING && elect_one()) Loader{shared, b, {}}.run(params, maps, slots);
    if (warp == REPAIRING) repair(params, slots, b);
    // The other lanes wait here, so that the warp is whole again.
    __syncwarp();
  }
  // Every product was waited for by who reads its results; the correction read the last ones.
  tmem_fence_before();
  __syncthreads();
  if (warp == MULTIPLYING) {
    tmem_fence_after();
    tmem_free(tmem, 512);
  }
}
