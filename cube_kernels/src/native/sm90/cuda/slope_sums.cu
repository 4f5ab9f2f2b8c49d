// The gradient of queries, for sm_90a, from slopes that a kernel for keys has left in memory: dQ = dS K. See slopes.cuh.
//
// A CTA is one producer warpgroup and WARPGROUPS consumer warpgroups, and stays for many tiles. A tile is 64 queries for each consumer. The
// producer brings, in steps of 64 keys, these and the slopes of each consumer whose queries see any of them, STAGES steps ahead. What the
// kernel waits for is memory: a consumer waits for each product before the next.

constexpr int KEYS_STAGE = chunks_of(DIM) * 64 * SWIZZLE;                    // bytes
constexpr int SLOPES_OFFSET = STAGES * KEYS_STAGE;
constexpr int SLOPES_STAGE = WARPGROUPS * SLOPES_BLOCK;
constexpr int TILE_OFFSET = SLOPES_OFFSET + STAGES * SLOPES_STAGE;
constexpr int TILE_SLOTS = 2;
constexpr int BARRIER_OFFSET = TILE_OFFSET + 128 * TILE_SLOTS;
static_assert(ROWS == 64 && ROW_BOX == 64 && BLOCKS == 1 && ONE_BLOCK == 0, "blocks of slopes");

extern __shared__ __align__(1024) u8 memory[];

struct Barriers {
  u32 base;
  DEVICE u32 full(int stage) const { return base + 8 * stage; }
  DEVICE u32 empty(int stage) const { return base + 8 * (STAGES + stage); }
  DEVICE u32 tile_full(int slot) const { return base + 8 * (2 * STAGES + slot % TILE_SLOTS); }
  DEVICE u32 tile_empty(int slot) const { return base + 8 * (2 * STAGES + TILE_SLOTS + slot % TILE_SLOTS); }
};
DEVICE u32 parity_of_tile(int slot) { return slot / TILE_SLOTS & 1; }

// ---- producer: one thread

// Finds blocks along a walk over keys, without a division in each step: for these one thread took longer than memory does for the blocks.
struct BlockWalk {
  int first[WARPGROUPS];         // of each warpgroup's queries
  int start[3], place[3];        // of the walk's first keys, and of those where it is

  DEVICE void begin(const Params& params, const Tile& tile) {
    int keys[3];
    column_number(tile, keys);
    place_of_keys(params.slopes, keys, start);
    place_of_keys(params.slopes, keys, place);
#pragma unroll
    for (int w = 0; w < WARPGROUPS; w++) {
      int queries[3];
      row_number(tile, w, queries);
      first[w] = first_block(params.slopes, tile.batch * params.heads + tile.head, queries);
    }
  }
  DEVICE int block(const Slopes& slopes, int warpgroup) const { return first[warpgroup] + blocks_ahead(slopes, place); }
  DEVICE void follow(const Slopes& slopes, const Walk& from, const Walk& to) {
#pragma unroll
    for (int a = FIRST_AXIS; a < 3; a++) {
      if (to.at[a] == from.at[a]) continue;
      const bool begins = to.at[a] == 0, ends = RANK > 1 && place[a] + 1 == slopes.keys[a];
      place[a] = begins ? start[a] : ends ? 0 : place[a] + 1;
    }
  }
};

// `slots` is where consumers find tiles in turn; one without steps is the end.
DEVICE void produce(const Params& params, const Maps& maps, const TensorMap* map_slopes, u32 shared, Tile* slots, const Barriers& barriers) {
  const Space& space = params.space;
  int step = 0, slot = 0;
  for (int number = blockIdx.x; number < space.tiles; number = gridDim.x + atomicAdd(params.taken, 1), slot++) {
    Tile& tile = slots[slot % TILE_SLOTS];
    barrier_wait(barriers.tile_empty(slot), parity_of_tile(slot) ^ 1);
    tile.first = step;
    decode_tile(space, params.shift, 0, number + first_tile(params), tile);
    barrier_arrive(barriers.tile_full(slot));
    Range seen[WARPGROUPS];
#pragma unroll
    for (int w = 0; w < WARPGROUPS; w++) seen[w] = steps_seen(space, tile, w);
    const int head = column_head(params, tile, 0);
    BlockWalk blocks;
    blocks.begin(params, tile);
    Walk walk;
    walk.start(tile, 0);
    for (int i = 0; i < tile.steps; i++, step++) {
      const int stage = stage_of(step);
      const u32 full = barriers.full(stage);
      int seeing = 0;
#pragma unroll
      for (int w = 0; w < WARPGROUPS; w++) seeing += i >= seen[w].low && i < seen[w].high;
      barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);
      barrier_expect(full, KEYS_STAGE + seeing * SLOPES_BLOCK);
#pragma unroll
      for (int w = 0; w < WARPGROUPS; w++) {
        if (i < seen[w].low || i >= seen[w].high) continue;
        tma_load(shared + SLOPES_OFFSET + stage * SLOPES_STAGE + w * SLOPES_BLOCK, map_slopes, full, 0, 8 * blocks.block(params.slopes, w), 0, 0, 0);
      }
      int at[BLOCKS][3];
      const Walk here = walk;
      column_boxes(space, tile, walk, at);
      blocks.follow(params.slopes, here, walk);
      load_box(shared + stage * KEYS_STAGE, maps.column_first, full, chunks_of(DIM), 64, at[0], head);
    }
  }
  barrier_wait(barriers.tile_empty(slot), parity_of_tile(slot) ^ 1);
  slots[slot % TILE_SLOTS].steps = 0;
  barrier_arrive(barriers.tile_full(slot));
}

// ---- consumers

// One consumer warpgroup.
struct Consumer {
  u32 shared;
  Barriers barriers;
  int warpgroup, warp, lane;
  float sums[FIRST_DIM / 2];

  DEVICE void release(u32 barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }
  DEVICE void wait(int step) { barrier_wait(barriers.full(stage_of(step)), parity_of(step)); }

  DEVICE void multiply(int step) {
    const Matrix slopes = unswizzled(shared + SLOPES_OFFSET + warpgroup * SLOPES_BLOCK, SLOPES_PIECE, 2 * SLOPES_PIECE).behind(stage_of(step) * (SLOPES_STAGE >> 4));
    const Matrix keys = swizzled(shared, 64 * SWIZZLE, 8 * SWIZZLE).behind(stage_of(step) * (KEYS_STAGE >> 4));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) wgmma_first(sums, slopes.at(k * (SLOPES_BLOCK / 4 >> 4)), keys.at(k * SWIZZLE));
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
  }

  // A step that no query of this warpgroup sees.
  DEVICE void skip(int step) {
    wait(step);
    release(barriers.empty(stage_of(step)));
  }

  DEVICE void consume(const Params& params, const Tile& tile, u32 tile_empty) {
    const Range seen = visible_steps(params.space, tile, warpgroup);
    const int first = uniform(tile.first), steps = uniform(tile.steps);
    clear(sums);
    for (int i = 0; i < seen.low; i++) skip(first + i);
#pragma unroll 1
    for (int i = seen.low; i < seen.high; i++) {
      wait(first + i);
      multiply(first + i);
      release(barriers.empty(stage_of(first + i)));
    }
    for (int i = seen.high; i < steps; i++) skip(first + i);
    finish(params, tile);
    release(tile_empty);
  }

  // Writes the rows, and computes those again that became infinite or NaN.
  DEVICE void finish(const Params& params, const Tile& tile) {
    int at[2][PLACE];
    rows_of_lane(tile, warpgroup, warp, lane, at);
    bool broken[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const bool exists = row_exists(tile, at[r]);
      const float poison = store_row(first_gradient(params, row_index(params.space, tile, at[r])), sums, r, params.scale, exists, lane);
      broken[r] = exists && !(poison == 0.f);
    }
    for_each_broken(broken, at, [&](const int (&row)[PLACE]) { repair_row(params, tile, row, lane); });
  }
};

extern "C" __global__ void __launch_bounds__(128 * (WARPGROUPS + 1), CTAS)
attention_backward(const __grid_constant__ TensorMap map_row_first, const __grid_constant__ TensorMap map_row_second,
                   const __grid_constant__ TensorMap map_column_first, const __grid_constant__ TensorMap map_column_second,
                   const __grid_constant__ TensorMap map_more_key, const __grid_constant__ TensorMap map_more_value,
                   const __grid_constant__ TensorMap map_slopes, const __grid_constant__ Params params) {
  const Maps maps = {&map_row_first, &map_row_second, &map_column_first, &map_column_second, &map_more_key, &map_more_value, &map_slopes};
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const Barriers barriers = {shared + BARRIER_OFFSET};
  // From lane 0, so that the compiler knows it to be the same in a warp.
  const int role = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(barriers.full(i), 1);
      barrier_init(barriers.empty(i), CONSUMER_WARPS);
    }
    for (int i = 0; i < TILE_SLOTS; i++) {
      barrier_init(barriers.tile_full(i), 1);
      barrier_init(barriers.tile_empty(i), CONSUMER_WARPS);
    }
    barrier_init_fence();
    tma_prefetch(maps.column_first);
    tma_prefetch(&map_slopes);
  }
  __syncthreads();
  Tile* const slots = (Tile*)(memory + TILE_OFFSET);
  if (role == 0) {
    give_registers();
    if (threadIdx.x == 0) produce(params, maps, &map_slopes, shared, slots, barriers);
  } else {
    take_registers();
    Consumer consumer = {shared, barriers, role - 1, (int)(threadIdx.x % 128 / 32), (int)(threadIdx.x % 32)};
    for (int slot = 0;; slot++) {
      barrier_wait(barriers.tile_full(slot), parity_of_tile(slot));
      const Tile& tile = slots[slot % TILE_SLOTS];
      if (uniform(tile.steps) == 0) break;
      consumer.consume(params, tile, barriers.tile_empty(slot));
    }
  }
}
