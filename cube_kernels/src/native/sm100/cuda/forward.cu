// Attention forward with logsumexp, for sm_100a.
//
// A CTA stays for many tiles of 2 x 128 queries of one head, two N-D boxes stacked along an axis, and sweeps over the keys that
// they see in boxes of 128, straight from heads-last memory with TMA; the boxes are laid from the first key that the tile sees.
// Both tiles of queries take turns: the softmax of one runs while the tensor cores multiply for the other.
//
// Warps: 0..3 and 4..7 softmax of the first and the second 128 queries, a row a thread; 8..11 correction: they rescale sums and
// write results; 12 issues products, 13 loads; 14 and 15 compute rows again that became infinite or NaN.
//
// Tensor memory, in columns: scores of both tiles at 0 and 128, whose lower halves their weights take; sums at 256 and 384.
// The next scores overwrite weights that products issued before them read: products of a thread are done in order.
//
// Shared memory: Q; STAGES of keys or values in turn; statistics of rows; tiles; barriers.
//
// Compile-time: those of tile.cuh, DIM, DIM_V, ADDITIONAL, STAGES, EMULATE, SOFTMAX_REGISTERS and CORRECTION_REGISTERS of a thread;
// other warps have what these leave of 512.

constexpr int Q_TILE = chunks_of(DIM) * CHUNK;
constexpr int K_BYTES = chunks_of(DIM) * CHUNK, V_BYTES = chunks_of(DIM_V) * CHUNK;
constexpr int STAGE = K_BYTES > V_BYTES ? K_BYTES : V_BYTES;
constexpr int KV_OFFSET = 2 * Q_TILE;
constexpr int SCALE_OFFSET = KV_OFFSET + STAGES * STAGE;      // float[2][128]: what a step multiplies older sums with
constexpr int FINAL_OFFSET = SCALE_OFFSET + 2 * 512;          // float[2 tiles][2 parities][2][128]: sum and maximum of a row
constexpr int WORK_OFFSET = FINAL_OFFSET + 2 * 2 * 2 * 512;
constexpr int BARRIER_OFFSET = WORK_OFFSET + SLOTS * sizeof(Work);
constexpr int SHARED_BYTES = BARRIER_OFFSET + 8 * (24 + 2 * STAGES);
static_assert(SHARED_BYTES == SHARED_MEMORY, "schedule.rs counts the same");

constexpr int WARPS_OF_TILE = 4;
constexpr int MULTIPLYING = 12, LOADING = 13, REPAIRING = 14;  // warps
DEVICE constexpr u32 scores_column(int s) { return 128 * s; }
DEVICE constexpr u32 weights_column(int s) { return 128 * s; }
DEVICE constexpr u32 out_column(int s) { return 256 + 128 * s; }

extern __shared__ __align__(1024) u8 memory[];

// Who arrives: TMA with its bytes, the completion of products, or one lane of each of so many warps.
struct Barriers {
  u32 base;
  DEVICE u32 at(int i) const { return base + 8 * i; }
  DEVICE u32 q_full(int s) const { return at(s); }                                            // bytes
  DEVICE u32 q_empty(int s) const { return at(2 + s); }                                       // products
  DEVICE u32 scores_full(int s) const { return at(4 + s); }                                   // products
  DEVICE u32 weights_full(int s) const { return at(6 + s); }                                  // 4 of softmax, 4 of correction
  DEVICE u32 scale_full(int s) const { return at(8 + s); }                                    // 4 of softmax
  DEVICE u32 final_full(int s, int parity) const { return at(10 + 2 * parity + s); }          // 4 of softmax
  DEVICE u32 out_full(int s) const { return at(14 + s); }                                     // products
  DEVICE u32 work_full(int slot) const { return at(16 + slot); }                              // the producer
  DEVICE u32 work_empty(int slot) const { return at(18 + slot); }                             // 12, 2 that repair, and who multiplies
  DEVICE u32 results_full(int slot) const { return at(20 + slot); }                           // 4 of correction
  DEVICE u32 tensor_memory() const { return at(22); }                                         // no barrier: its address
  DEVICE u32 kv_full(int stage) const { return at(24 + stage); }                              // bytes
  DEVICE u32 kv_empty(int stage) const { return at(24 + STAGES + stage); }                    // products

  DEVICE void start() const {
    for (int s = 0; s < 2; s++) {
      barrier_init(q_full(s), 1);
      barrier_init(q_empty(s), 1);
      barrier_init(scores_full(s), 1);
      barrier_init(weights_full(s), 2 * WARPS_OF_TILE);
      barrier_init(scale_full(s), WARPS_OF_TILE);
      barrier_init(final_full(s, 0), WARPS_OF_TILE);
      barrier_init(final_full(s, 1), WARPS_OF_TILE);
      barrier_init(out_full(s), 1);
    }
    for (int slot = 0; slot < SLOTS; slot++) {
      barrier_init(work_full(slot), 1);
      barrier_init(work_empty(slot), 3 * WARPS_OF_TILE + 3);
      barrier_init(results_full(slot), WARPS_OF_TILE);
    }
    for (int i = 0; i < STAGES; i++) barrier_init(kv_full(i), 1), barrier_init(kv_empty(i), 1);
    barrier_init_fence();
  }
};

DEVICE u32 final_statistics(u32 shared, int s, int parity, int row) { return shared + FINAL_OFFSET + (s * 2 + parity) * 1024 + row * 4; }

// ---- loads: one thread, which also finds the tiles that all work on

DEVICE void produce(const Params& params, const Maps& maps, u32 shared, Work* slots, const Barriers& b) {
  const Space& space = params.space;
  const int additional = ADDITIONAL ? params.additional : 0;
  Place place;
  int tiles = 0;
  for (int round = 0; round < rounds(space.tiles); round++) {
    const int index = tile_index(round);
    if (index >= space.tiles) continue;
    Work& work = slots[slot_of(tiles)];
    const Tile& tile = work.tile;
    barrier_wait(b.work_empty(slot_of(tiles)), parity_of_slot(tiles) ^ 1);
    decode_tile(space, params.shift, 0, index, work.tile);
    if (tile.steps == 0) continue;
    for (int s = 0; s < 2; s++) find_range(space, additional, s, work);
    barrier_arrive(b.work_full(slot_of(tiles)));
    const u32 q_parity = tiles & 1 ^ 1;
    tiles++;
    for (int s = 0; s < 2; s++) {
      int at[3];
      row_box(space, tile, s, at);
      barrier_wait(b.q_empty(s), q_parity);
      barrier_expect(b.q_full(s), Q_TILE);
      load_box(shared + s * Q_TILE, maps.query, b.q_full(s), chunks_of(DIM), 128, at, tile.head);
    }
    const int head_kv = tile.head / params.group_size, steps = tile.steps + additional_steps(additional);
    Walk walk;
    walk.start(tile, 0);
    for (int i = 0; i < steps; i++) {
      const bool more = ADDITIONAL && i >= tile.steps;
      int at[BLOCKS][3];
      if (more) additional_boxes(tile, (i - tile.steps) * BLOCK, at);
      else column_boxes(space, tile, walk, at);
      u32 full = b.kv_full(place.stage), to = shared + KV_OFFSET + place.stage * STAGE;
      barrier_wait(b.kv_empty(place.stage), place.parity ^ 1);
      barrier_expect(full, K_BYTES);
      load_box(to, more ? maps.more_key : maps.key, full, chunks_of(DIM), 128, at[0], head_kv);
      place.next();
      full = b.kv_full(place.stage), to = shared + KV_OFFSET + place.stage * STAGE;
      barrier_wait(b.kv_empty(place.stage), place.parity ^ 1);
      barrier_expect(full, V_BYTES);
      load_box(to, more ? maps.more_value : maps.value, full, chunks_of(DIM_V), 128, at[0], head_kv);
      place.next();
    }
  }
  barrier_wait(b.work_empty(slot_of(tiles)), parity_of_slot(tiles) ^ 1);
  slots[slot_of(tiles)].tile.steps = 0;
  barrier_arrive(b.work_full(slot_of(tiles)));
}

// ---- products: one thread

DEVICE void multiply(const Params& params, u32 shared, u32 tmem, const Work* slots, const Barriers& b) {
  const u64 q = vectors(shared), k = vectors(shared + KV_OFFSET), v = summed_rows(shared + KV_OFFSET);
  Place place;
  u32 weights_parity[2] = {0, 0};
  for (int tiles = 0;; tiles++) {
    const Work& work = slots[slot_of(tiles)];
    barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
    if (work.tile.steps == 0) break;
    const int steps = work.tile.steps + additional_steps(params.additional);
    const Range range[2] = {work.range[0], work.range[1]};
    // In turn the sums of a step and the scores of the next, of either tile of queries.
    for (int i = -1; i < steps; i++) {
      const bool has_sums = i >= 0, has_scores = i + 1 < steps;
      Place value = place;
      if (has_sums) {
        place.next();
        barrier_wait(b.kv_full(value.stage), value.parity);
      }
      const Place key = place;
#pragma unroll
      for (int s = 0; s < 2; s++) {
        if (has_sums && is_in(range[s], i)) {
          barrier_wait(b.weights_full(s), weights_parity[s]);
          weights_parity[s] ^= 1;
          tmem_fence_after();
          add_weighted<DIM_V, 32>(tmem + out_column(s), tmem + weights_column(s), v + bytes_on(value.stage * STAGE), i == range[s].low);
          if (i + 1 == range[s].high) mma_commit(b.out_full(s));
        }
        if (!has_scores) continue;
        if (s == 0) barrier_wait(b.kv_full(key.stage), key.parity);
        if (i < 0) barrier_wait(b.q_full(s), tiles & 1);
        if (is_in(range[s], i + 1)) {
          dot_products<DIM>(tmem + scores_column(s), q + bytes_on(s * Q_TILE), k + bytes_on(key.stage * STAGE));
          mma_commit(b.scores_full(s));
        }
      }
      if (has_sums) mma_commit(b.kv_empty(value.stage));
      if (has_scores) {
        mma_commit(b.kv_empty(key.stage));
        place.next();
      }
    }
    mma_commit(b.q_empty(0));
    mma_commit(b.q_empty(1));
    barrier_arrive(b.work_empty(slot_of(tiles)));
  }
}

// ---- softmax: a warpgroup for each tile of queries, a row a thread

DEVICE void soften(const Params& params, u32 shared, u32 tmem, const Work* slots, const Barriers& b, int s) {
  const int row = threadIdx.x % 128, lane = threadIdx.x % 32;
  const u32 mine = lane_of(tmem);
  u32 parity = 0;
  int done = 0;                  // tiles with rows
  for (int tiles = 0;; tiles++) {
    const Work& work = slots[slot_of(tiles)];
    const Tile& tile = work.tile;
    barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
    const int steps = uniform(tile.steps), low = uniform(work.range[s].low), high = uniform(work.range[s].high);
    if (steps == 0) break;
    if (low < high) {
      int at[3];
      row_of_warpgroup(tile, s, row, at);
      View view;
      view.start_tile(params.space, tile, at);
      Walk walk;
      walk.start(tile, low);
      Softmax softmax;
      softmax.start();
#pragma unroll 1
      for (int i = low; i < high; i++, parity ^= 1) {
        Seen<4> seen;
        seen.aim(view, walk, ADDITIONAL && i >= steps, params.additional - (i - steps) * BLOCK, 0);
        walk.next(tile);
        const u32 scores = mine + scores_column(s), weights = mine + weights_column(s);
        float x[64], most;
        barrier_wait(b.scores_full(s), parity);
        tmem_fence_after();
        load_scores(x, scores);
        seen.apply(x, 0, NEG_INF);
        most = softmax.largest(x, softmax.max);
        // The second half comes twice: all of them would take too many registers.
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
        barrier_wait(b.weights_full(s), parity ^ 1);
        store_float(shared + SCALE_OFFSET + (s * 128 + row) * 4, rescale);
        __syncwarp();
        if (lane == 0) barrier_arrive(b.scale_full(s));
        weigh_half(softmax, x, params.scale_log2, weights);
        softmax.add(x);
        load_scores(x, scores + 64);
        seen.apply(x, 2, NEG_INF);
        weigh_half(softmax, x, params.scale_log2, weights + 32);
        tmem_wait_stores();
        tmem_fence_before();
        __syncwarp();
        if (lane == 0) barrier_arrive(b.weights_full(s));
        softmax.add(x);
      }
      const u32 to = final_statistics(shared, s, done & 1, row);
      store_float(to, softmax.sum);
      store_float(to + 512, softmax.max);
      __syncwarp();
      if (lane == 0) barrier_arrive(b.final_full(s, done & 1));
      done++;
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(b.work_empty(slot_of(tiles)));
  }
}

// ---- correction: a warpgroup for both tiles of queries, a row of each a thread

DEVICE void correct(const Params& params, u32 shared, u32 tmem, Work* slots, const Barriers& b) {
  const int row = threadIdx.x % 128, lane = threadIdx.x % 32;
  const u32 mine = lane_of(tmem);
  u32 parity[2] = {0, 0};
  int done[2] = {0, 0};
  for (int tiles = 0;; tiles++) {
    Work& work = slots[slot_of(tiles)];
    const Tile& tile = work.tile;
    barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
    if (uniform(tile.steps) == 0) break;
    Range range[2];
#pragma unroll
    for (int s = 0; s < 2; s++) range[s].low = uniform(work.range[s].low), range[s].high = uniform(work.range[s].high);
    const int steps = max_(range[0].high, range[1].high);
#pragma unroll 1
    for (int i = 0; i < steps; i++)
#pragma unroll
      for (int s = 0; s < 2; s++) {
        if (!is_in(range[s], i)) continue;
        // That there are scores of this step says that the products before them are done.
        barrier_wait(b.scale_full(s), parity[s]);
        parity[s] ^= 1;
        const float factor = load_float(shared + SCALE_OFFSET + (s * 128 + row) * 4);
        if (i > range[s].low && __any_sync(~0u, factor < 1.f)) {
          tmem_fence_after();
          rescale_sums(mine + out_column(s), factor);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(b.weights_full(s));
      }
#pragma unroll 1
    for (int s = 0; s < 2; s++) {
      const int count = s ? done[1] : done[0], warp = threadIdx.x % 128 / 32;
      if (lane == 0) work.broken[4 * s + warp] = 0;
      if (s ? range[1].low == range[1].high : range[0].low == range[0].high) continue;
      barrier_wait(b.final_full(s, count & 1), count >> 1 & 1);
      const u32 from = final_statistics(shared, s, count & 1, row);
      const float sum = load_float(from), max = load_float(from + 512);
      barrier_wait(b.out_full(s), count & 1);
      tmem_fence_after();
      const u32 broken = __ballot_sync(~0u, finish(params, tile, mine + out_column(s), sum, max, s));
      if (lane == 0) work.broken[4 * s + warp] = broken;
      if (s) done[1]++;
      else done[0]++;
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(b.results_full(slot_of(tiles)));
    if (lane == 0) barrier_arrive(b.work_empty(slot_of(tiles)));
  }
}

// ---- repair: a warp for each tile of queries

DEVICE void repair(const Params& params, const Work* slots, const Barriers& b, int s) {
  for (int tiles = 0;; tiles++) {
    const Work& work = slots[slot_of(tiles)];
    barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
    if (uniform(work.tile.steps) == 0) break;
    barrier_wait(b.results_full(slot_of(tiles)), parity_of_slot(tiles));
#pragma unroll 1
    for (int warp = 0; warp < WARPS_OF_TILE; warp++) repair_rows(params, work.tile, s, warp, uniform(work.broken[4 * s + warp]));
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(b.work_empty(slot_of(tiles)));
  }
}

extern "C" __global__ void __launch_bounds__(512, 1)
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
  if (warp < 2 * WARPS_OF_TILE) {
    take_registers<SOFTMAX_REGISTERS>();
    soften(params, shared, tmem, slots, b, warp / WARPS_OF_TILE);
  } else if (warp < 3 * WARPS_OF_TILE) {
    give_registers<CORRECTION_REGISTERS>();
    correct(params, shared, tmem, slots, b);
  } else {
    give_registers<512 - 2 * SOFTMAX_REGISTERS - CORRECTION_REGISTERS>();
    const Maps maps = {&map_query, &map_key, &map_value, &map_more_key, &map_more_value};
    if (warp == MULTIPLYING && elect_one()) multiply(params, shared, tmem, slots, b);
    if (warp == LOADING && elect_one()) produce(params, maps, shared, slots, b);
    if (warp >= REPAIRING) repair(params, slots, b, warp - REPAIRING);
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
