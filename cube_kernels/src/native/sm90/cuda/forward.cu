// Attention forward with logsumexp, for sm_90a.
//
// A CTA is one producer warpgroup and WARPGROUPS consumer warpgroups, and stays for many tiles. A tile is
// 64 queries for each consumer, an N-D box of them, stacked along one axis. The producer brings Q once a
// tile, then K and V in steps of BLOCKS boxes of keys, STAGES steps ahead, straight from heads-last
// memory with TMA; the boxes are laid from the first key that the tile sees. A consumer issues the
// product Q K^T of a step together with P V of the step before, and its softmax runs while the other
// warpgroup has the tensor cores (PINGPONG).
//
// With TEAMS, a CTA is as many such pipelines side by side, which share nothing but the producers' warpgroup, a warp for each, and the table
// of one-hot columns: a multiprocessor has registers for four consumer warpgroups if one CTA holds them, and for three if each has a CTA
// of its own. With ROW_BUFFERS, the rows of Q of the next tile are loaded while those of a tile are in use, in shared memory both.
//
// Registers of a consumer thread: out[DIM_V / 2], scores[ROWS / 2], weights[ROWS / 4], and with
// ROWS_IN_REGISTERS 2 * DIM / 8 more. Shared memory: see the layout below.

constexpr int K_STEPS = (DIM + 15) / 16;  // wgmma k steps of the first product

// Whether half of a step's weights come behind the wait for P V of the step before, which the compiler else has ahead of nearly all of
// them. Between the halves is the wait for the step's values: a branch, over which it moves nothing. Which kernels gain by it has been
// measured, see NOTES.md: masked ones of wide steps, and of three warpgroups.
constexpr bool IN_HALVES = MASK == ONE_HOT && (ROWS > 128 || WARPGROUPS == 3);
constexpr int FIRST_WEIGHTS = SCORES / (IN_HALVES ? 8 : 4);

constexpr int Q_TILE = chunks_of(DIM) * 64 * SWIZZLE;  // bytes, of one warpgroup
constexpr int Q_BYTES = chunks_of(DIM) * ROW_BOX * SWIZZLE;  // that are loaded
constexpr int K_STAGE = chunks_of(DIM) * STAGE_ROWS * SWIZZLE;
constexpr int V_STAGE = chunks_of(DIM_V) * STAGE_ROWS * SWIZZLE;
constexpr int K_BYTES = chunks_of(DIM) * ROWS * SWIZZLE;  // that are loaded
constexpr int V_BYTES = chunks_of(DIM_V) * ROWS * SWIZZLE;
constexpr int K_OFFSET = ROW_BUFFERS * WARPGROUPS * Q_TILE;
constexpr int V_OFFSET = K_OFFSET + STAGES * K_STAGE;
constexpr int TEAM_BYTES = V_OFFSET + STAGES * V_STAGE;
constexpr int ONE_HOT_OFFSET = TEAMS * TEAM_BYTES;
constexpr int TILE_OFFSET = ONE_HOT_OFFSET + ONE_HOT_BYTES;
constexpr int TILES = LISTED ? WARPGROUPS : 1;       // that consumers find: listed, each has its own
constexpr int TILE_SLOTS = LISTED ? 2 : ROW_BUFFERS;           // where a tile stays until its results are written
constexpr int BARRIER_OFFSET = TILE_OFFSET + 128 * TEAMS * TILES * TILE_SLOTS;
constexpr int BARRIERS = 4 * STAGES + 2 * ROW_BUFFERS;  // of a pipeline
constexpr int TABLE_OFFSET = BARRIER_OFFSET + 8 * TEAMS * BARRIERS;  // of a bias, for each pipeline
static_assert(TEAMS == 1 || ROW_BUFFERS > 1 && !PINGPONG, "named barriers are those of one pipeline");
static_assert(ROW_BUFFERS == 1 || !ROWS_IN_REGISTERS && !PACKED && !LISTED, "a second tile of Q is for plain problems");

extern __shared__ __align__(1024) u8 memory[];

struct Barriers {
  u32 base;
  DEVICE u32 k_full(int stage) const { return base + 8 * stage; }
  DEVICE u32 k_empty(int stage) const { return base + 8 * (STAGES + stage); }
  DEVICE u32 v_full(int stage) const { return base + 8 * (2 * STAGES + stage); }
  DEVICE u32 v_empty(int stage) const { return base + 8 * (3 * STAGES + stage); }
  DEVICE u32 q_full(u32 tile) const { return base + 8 * (4 * STAGES + tile % ROW_BUFFERS); }
  DEVICE u32 q_empty(u32 tile) const { return base + 8 * (4 * STAGES + ROW_BUFFERS + tile % ROW_BUFFERS); }
};
DEVICE u32 parity_of_rows(u32 tile) { return tile / ROW_BUFFERS & 1; }

// ---- producer: one thread

// `next` is where consumers find the tile that Q belongs to, or, with ROW_BUFFERS, that and the one after it; a tile without steps is the end.
DEVICE void produce(const Launch& launch, u32 shared, Tile* next, const Barriers& barriers, int team) {
  int step = 0, tiles = 0;
#if LISTED
  Tile* const slots = next;
  const Params& params = launch.any();
  const Space& space = params.space;
  const Maps& maps = launch.maps(*next);
  for (int index = blockIdx.x, later; index < launch.tiles(); index = later) {
    later = gridDim.x + atomicAdd(params.listed.taken, 1);
    barrier_wait(barriers.q_empty(tiles), parity_of_rows(tiles) ^ 1);
    next = slots + (tiles & 1) * TILES;
    decode_listed(space, params.listed, index, next);
    const Tile& tile = *next;
    const u64* items = params.listed.items + params.listed.table[tile.list].x;
    const int steps = tile.steps, head_kv = tile.head / params.group_size;
#else
  const int worker = TEAMS > 1 ? blockIdx.x + gridDim.x * team : blockIdx.x, workers = gridDim.x * TEAMS;
  for (int round = 0; round < rounds(launch.tiles(), workers); round++) {
    // With a bias a table of a head serves for many tiles, and heads that are neighbors in memory are read at once.
    int index = tile_index(round, worker, workers, BIAS ? kept_chunk(launch.any().space, workers) : 1);
    if (index >= launch.tiles()) continue;
    Tile tile;
    launch.find(index, tile);
    const Params& params = launch.params(tile);
    const Space& space = params.space;
    decode_tile(space, params.shift, BIAS ? params.bias.samples : 0, index, tile);
    if (tile.steps == 0) continue;
    launch.acquire(tile, *next);
    const Maps maps = launch.maps(tile);
    const int head_kv = tile.head / params.group_size;
    barrier_wait(barriers.q_empty(tiles), parity_of_rows(tiles) ^ 1);
    next[tiles % TILE_SLOTS] = tile;
#endif
    barrier_expect(barriers.q_full(tiles), WARPGROUPS * Q_BYTES);
#pragma unroll
    for (int w = 0; w < WARPGROUPS; w++) {
      const Tile& own = LISTED ? next[w] : tile;
      int at[3];
      row_box(space, own, LISTED ? 0 : w, at);
      load_box(shared + (tiles % ROW_BUFFERS * WARPGROUPS + w) * Q_TILE, maps.query, barriers.q_full(tiles), chunks_of(DIM), 64, at, own.head);
    }
    tiles++;
#if LISTED
    for (int i = 0; i < steps; i++, step++, items += BOXES) {
      constexpr bool more = false;
#else
    Walk walk;
    walk.start(tile, 0);
    for (int i = 0; i < tile.steps + additional_steps(params.additional); i++, step++) {
      const bool more = ADDITIONAL && i >= tile.steps;
      int at[BLOCKS][3];
      if (more) additional_boxes(tile, (i - tile.steps) * ROWS, at);
      else column_boxes(space, tile, walk, at);
#endif
      const int stage = stage_of(step);
      const u32 key = shared + K_OFFSET + stage * K_STAGE, value = shared + V_OFFSET + stage * V_STAGE;
      barrier_wait(barriers.k_empty(stage), parity_of(step) ^ 1);
      barrier_expect(barriers.k_full(stage), K_BYTES);
#pragma unroll
      for (int b = 0; b < BOXES; b++) {
#if LISTED
        int box[3];
        listed_box(space, tile, again(items + b), box);
#else
        const int(&box)[3] = at[b];
#endif
        load_box(key + b * BLOCK * SWIZZLE, more ? maps.more_key : maps.key, barriers.k_full(stage), chunks_of(DIM), STAGE_ROWS, box, head_kv);
      }
      barrier_wait(barriers.v_empty(stage), parity_of(step) ^ 1);
      barrier_expect(barriers.v_full(stage), V_BYTES);
#pragma unroll
      for (int b = 0; b < BOXES; b++) {
#if LISTED
        int box[3];
        listed_box(space, tile, again(items + b), box);
#else
        const int(&box)[3] = at[b];
#endif
        load_box(value + b * BLOCK * SWIZZLE, more ? maps.more_value : maps.value, barriers.v_full(stage), chunks_of(DIM_V), STAGE_ROWS, box, head_kv);
      }
    }
  }
  barrier_wait(barriers.q_empty(tiles), parity_of_rows(tiles) ^ 1);
#if LISTED
  for (int w = 0; w < TILES; w++) slots[(tiles & 1) * TILES + w].steps = 0;
#else
  next[tiles % TILE_SLOTS].steps = 0;
#endif
  barrier_arrive(barriers.q_full(tiles));
}

// ---- consumers

// One consumer warpgroup.
struct Consumer {
  u32 shared;
  Barriers barriers;
  int team, warpgroup, warp, lane;
  float scores[SCORES];
  float out[DIM_V / 2];
  u32 weights[FRAGMENTS];
  u32 query[4 * K_STEPS];        // with ROWS_IN_REGISTERS
  Softmax softmax;
  OneHotRows one_hot;
  Matrix query_matrix, key_matrix, value_matrix, one_hot_matrix;

  DEVICE void wait_turn() { if (PINGPONG) named_sync(1 + warpgroup, 256); }
  DEVICE void pass_turn() { if (PINGPONG) named_arrive(1 + (warpgroup + 1) % WARPGROUPS, 256); }
  DEVICE void release(u32 barrier) { if (lane == 0) barrier_arrive(barrier); }
  DEVICE void wait_key(int step) { barrier_wait(barriers.k_full(stage_of(step)), parity_of(step)); }
  DEVICE void wait_value(int step) { barrier_wait(barriers.v_full(stage_of(step)), parity_of(step)); }
  DEVICE void release_key(int step) { release(barriers.k_empty(stage_of(step))); }
  DEVICE void release_value(int step) { release(barriers.v_empty(stage_of(step))); }

  DEVICE void start(u32 shared_, u32 one_hot_columns, const Barriers& barriers_, int team_, int warpgroup_) {
    shared = shared_;
    barriers = barriers_;
    team = team_;
    warpgroup = warpgroup_;
    warp = threadIdx.x % 128 / 32;
    lane = threadIdx.x % 32;
    query_matrix = swizzled(shared + warpgroup * Q_TILE, 16, 8 * SWIZZLE);
    key_matrix = swizzled(shared + K_OFFSET, 16, 8 * SWIZZLE);
    value_matrix = swizzled(shared + V_OFFSET, STAGE_ROWS * SWIZZLE, 8 * SWIZZLE);
    one_hot_matrix = unswizzled(one_hot_columns, 128, 256);
    one_hot.start_lane(lane);
  }

  // A step that no row of this warpgroup sees.
  DEVICE void skip(int step) {
    wait_turn();
    pass_turn();
    wait_key(step);
    __syncwarp();
    release_key(step);
    wait_value(step);
    __syncwarp();
    release_value(step);
  }

  DEVICE void load_query() {
    load_fragments(shared + warpgroup * Q_TILE, warp * 16 + lane / 4, lane, query);
    __syncwarp();
  }

  // scores = mask + Q K^T, or are added to with BIAS_FIRST, of the rows that came with tile `tiles`.
  DEVICE void first_product(int step, u32 tiles) {
    const Matrix key = key_matrix.behind(stage_of(step) * (K_STAGE >> 4));
    wgmma_fence();
    if constexpr (MASK == ONE_HOT)
      wgmma_mask(scores, one_hot.fragment[0], one_hot.fragment[1], one_hot.fragment[2], one_hot.fragment[3], one_hot_matrix.at(0));
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
      const int accumulate = MASK == ONE_HOT || BIAS_FIRST || k > 0;
      const u64 key_k = key.at(k / 4 * (STAGE_ROWS * SWIZZLE >> 4) + k % 4 * 2);
#if ROWS_IN_REGISTERS
      wgmma_scores(scores, query[4 * k], query[4 * k + 1], query[4 * k + 2], query[4 * k + 3], key_k, accumulate);
#else
      wgmma_scores(scores, query_matrix.at(tiles % ROW_BUFFERS * (WARPGROUPS * Q_TILE >> 4) + k / 4 * 512 + k % 4 * 2), key_k, accumulate);
#endif
    }
    wgmma_commit();
  }

  // out += P V
  DEVICE void second_product(int step) {
    const Matrix value = value_matrix.behind(stage_of(step) * (V_STAGE >> 4));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < FRAGMENTS / 4; k++)
      wgmma_values(out, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3], value.at(k * SWIZZLE));
    wgmma_commit();
  }

  // Packs the weights of a step whose older weights nobody reads any more.
  DEVICE void pack_weights(float scale) {
    pack_fragments(scores, weights);
    if (softmax.overflows(weights)) {
      softmax.raise(scores, out, scale);
      pack_fragments(scores, weights);
    }
  }

  // Has the bias of a head in shared memory.
  DEVICE void find_bias(const Params& params, const BiasTable& table, int head) {
    if (uniform(table.head()) == head) return;
    named_sync(BIAS_BARRIER + team, 32 * CONSUMER_WARPS);
    table.fill(params.bias, head, params.scale_log2);
    named_sync(BIAS_BARRIER + team, 32 * CONSUMER_WARPS);
  }

  // Tile number `tiles`, whose Q has arrived and whose first step is number `first` of all. Gives how many steps it has.
  DEVICE int consume(const Params& params, const Tile& tile, int tiles, int first) {
    const Space& space = params.space;
    const float scale_log2 = params.scale_log2;
    int query_at[2][PLACE];
    rows_of_lane(tile, warpgroup, warp, lane, query_at);
    const int steps = uniform(tile.steps) + additional_steps(params.additional);
#if LISTED
    const int whole = uniform(tile.whole);
    const Range visible = {0, uniform(tile.rows[2]) > 0 ? steps : 0};
#else
    const Range visible = visible_steps(space, tile, warpgroup);
#endif
    int low = visible.low, high = visible.high;
    const bool idle = low == high;
    if (steps > tile.steps && !idle) high = steps;

    LinearRows linear;
    if constexpr (MASK == LINEAR) linear.start_tile(space, tile, warpgroup, query_at);
    BiasRows bias;
    const BiasTable table = {memory + TABLE_OFFSET + team * TABLE_BYTES};
    int block_entry = 0;         // of the bias, of the coming step's block
    if constexpr (BIAS) {
      find_bias(params, table, tile.head);
      bias.start_tile(tile, query_at, low, lane);
    }
    Walk walk;
    if constexpr (MASK == ONE_HOT || BIAS_FIRST) walk = visible_walk(space, tile, warpgroup, low);
    if constexpr (MASK == ONE_HOT) one_hot.start_tile(space, tile, query_at);
    // What a coming step needs of the mask, up to what `fire` does when no wgmma is in flight.
    auto aim = [&](int i) {
      if constexpr (BIAS_FIRST) block_entry = BiasRows::block_at(walk);
      if (BIAS_FIRST && MASK != ONE_HOT) walk.next(tile);
      if (MASK != ONE_HOT) return;
      if (ADDITIONAL && i >= tile.steps) one_hot.aim_nowhere();
      else one_hot.aim(tile, walk);
    };
    auto fire = [&](bool is_first) {
      if (MASK == ONE_HOT) one_hot.fire(is_first);
    };
    // What the scores of a step begin with. No wgmma may be in flight.
    auto start_scores = [&](int i) {
      if constexpr (BIAS_FIRST) {
        if (!ADDITIONAL || i < tile.steps) bias.load(table, block_entry, scores);
        else clear(scores);
      }
    };
    auto weigh = [&](int i) {
      mask_step(scores, linear, tile, i, params.additional, lane);
#if LISTED
      if (i >= whole) mask_items(scores, params.listed, tile, params.listed.items + params.listed.table[tile.list].x + i * BOXES, warp, lane);
#endif
      if constexpr (BIAS && !BIAS_FIRST) {
        if (!ADDITIONAL || i < tile.steps) bias.add(table, tile, scores);
        bias.next(tile);
      }
      softmax.step<0, FIRST_WEIGHTS>(scores, scale_of(params, scale_log2));
      if constexpr (IN_HALVES) wait_value(first + i);
    };
    auto weigh_rest = [&] {
      if constexpr (IN_HALVES) softmax.step<FIRST_WEIGHTS, SCORES / 4>(scores, scale_of(params, scale_log2));
    };

    clear(out);
    // Behind the last plane of a sample lies the next one.
    softmax.start(RANK < 3 || row_exists(tile, query_at[0]), RANK < 3 || row_exists(tile, query_at[1]));
    if constexpr (ROWS_IN_REGISTERS) {
      load_query();
      release(barriers.q_empty(tiles));
    }
    for (int i = 0; i < low; i++) skip(first + i);
    if (low < high) {
      aim(low);
      fire(true);
      start_scores(low);
      wait_key(first + low);
      wait_turn();
      first_product(first + low, tiles);
      pass_turn();
      aim(low + 1);
      wgmma_wait<0>();
      pin(scores);
      release_key(first + low);
      weigh(low);
      weigh_rest();
      pack_fragments(scores, weights);
      fire(false);
#pragma unroll 1
      for (int i = low + 1; i < high; i++) {
        start_scores(i);
        wait_key(first + i);
        wait_turn();
        first_product(first + i, tiles);
        if constexpr (!IN_HALVES) wait_value(first + i - 1);
        second_product(first + i - 1);
        pass_turn();
        aim(i + 1);
        wgmma_wait<1>();
        pin(scores);
        release_key(first + i);
        weigh(i);
        wgmma_wait<0>();
        pin(out);
        release_value(first + i - 1);
        weigh_rest();
        pack_weights(scale_of(params, scale_log2));
        fire(false);
      }
      if constexpr (!IN_HALVES) wait_value(first + high - 1);
      second_product(first + high - 1);
      wgmma_wait<0>();
      pin(out);
      release_value(first + high - 1);
    }
    if constexpr (!ROWS_IN_REGISTERS && ROW_BUFFERS == 1) release(barriers.q_empty(tiles));
    for (int i = high; i < steps; i++) skip(first + i);
    if (!idle) finish(params, tile);
    if constexpr (ROW_BUFFERS > 1) {
      // The tile stays with its rows.
      __syncwarp();
      release(barriers.q_empty(tiles));
    }
    return steps;
  }

  // Whether a row has the weights of all that it sees, as far as its reference tells.
  static DEVICE bool is_trusted(const Params& params, float reference) {
    return fabsf(reference) < TRUSTED_SCORE && (!BIAS || reference * params.scale_log2 > -Softmax::TRUSTED_POWERS);
  }

  // Writes the rows, and computes those again that cannot be trusted.
  DEVICE void finish(const Params& params, const Tile& tile) {
    const Space& space = params.space;
    softmax.finish();
    int query_at[2][PLACE];
    rows_of_lane(tile, warpgroup, warp, lane, query_at);
    bool broken[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
#if LISTED
      rows_of_lane(tile, warpgroup, warp, opaque(lane), query_at);
#endif
      const i64 row = row_index(space, tile, query_at[r]);
      const bool exists = row_exists(tile, query_at[r]);
      // A row that sees nothing has no sum.
#if LISTED
      const bool blind = softmax.reference[r] == NEG_INF && sees_nothing(params.listed, tile, query_at[r]);
#else
      const bool blind = params.additional == 0 && is_blind(space, tile, query_at[r]);
#endif
      if (blind) forget_row(out, r), softmax.forget(r);
      const float factor = blind ? 0.f : 1.f / softmax.sum[r];
      const float poison = softmax.sum[r] * 0.f + store_row((u16*)params.out + row * DIM_V, out, r, factor, exists, lane);
      if (lane % 4 == 0 && exists)
        params.lse[row] = softmax.logsumexp(r);
      broken[r] = exists && !blind && !(poison == 0.f && is_trusted(params, softmax.reference[r]));
    }
#if LISTED
    // Found again where they are needed: registers are short.
    rows_of_lane(tile, warpgroup, warp, opaque(lane), query_at);
#endif
    for_each_broken(broken, query_at, [&](const int (&at)[PLACE]) { repair_row(params, tile, at, lane); });
  }
};

extern "C" __global__ void __launch_bounds__(128 * (WARPGROUPS * TEAMS + 1), CTAS)
#if PACKED
attention_forward(const __grid_constant__ Launch launch) {
#else
attention_forward(const __grid_constant__ TensorMap map_query, const __grid_constant__ TensorMap map_key,
                  const __grid_constant__ TensorMap map_value, const __grid_constant__ TensorMap map_more_key,
                  const __grid_constant__ TensorMap map_more_value, const __grid_constant__ Params params) {
  const Maps maps = {&map_query, &map_key, &map_value, &map_more_key, &map_more_value};
  const Launch launch = {params, maps};
#endif
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  // From lane 0, so that the compiler knows it to be the same in a warp.
  const int role = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    for (int team = 0; team < TEAMS; team++) {
      const Barriers barriers = {shared + BARRIER_OFFSET + team * 8 * BARRIERS};
      for (int i = 0; i < STAGES; i++) {
        barrier_init(barriers.k_full(i), 1);
        barrier_init(barriers.v_full(i), 1);
        barrier_init(barriers.k_empty(i), CONSUMER_WARPS);
        barrier_init(barriers.v_empty(i), CONSUMER_WARPS);
      }
      for (int i = 0; i < ROW_BUFFERS; i++) {
        barrier_init(barriers.q_full(i), 1);
        barrier_init(barriers.q_empty(i), CONSUMER_WARPS);
      }
    }
    barrier_init_fence();
    if constexpr (BIAS)
      for (int team = 0; team < TEAMS; team++) BiasTable{memory + TABLE_OFFSET + team * TABLE_BYTES}.start();
#if !PACKED
    tma_prefetch(maps.query);
    tma_prefetch(maps.key);
    tma_prefetch(maps.value);
#endif
  }
  if constexpr (MASK == ONE_HOT) {
    write_one_hot(memory + ONE_HOT_OFFSET);
    shared_proxy_fence();
  }
  if constexpr (ROW_BOX < 64 || ROWS < STAGE_ROWS) {
    // Rows that no box fills.
    constexpr int CLEARED = ROWS < STAGE_ROWS ? TEAM_BYTES : K_OFFSET;
    for (int team = 0; team < TEAMS; team++)
      for (int i = threadIdx.x; i < CLEARED / 4; i += blockDim.x) ((u32*)(memory + team * TEAM_BYTES))[i] = 0;
    shared_proxy_fence();
  }
  launch.start(*(Tile*)(memory + TILE_OFFSET));
  __syncthreads();
  const int team = TEAMS == 1 ? 0 : role == 0 ? uniform(threadIdx.x / 32) : (role - 1) / WARPGROUPS;
  const u32 own = shared + team * TEAM_BYTES;
  const Barriers barriers = {shared + BARRIER_OFFSET + team * 8 * BARRIERS};
  Tile* const slots = (Tile*)(memory + TILE_OFFSET) + team * TILES * TILE_SLOTS;
  if (role == 0) {
    give_registers();
    if (threadIdx.x % 32 == 0 && team < TEAMS && (TEAMS > 1 || threadIdx.x == 0)) produce(launch, own, slots, barriers, team);
  } else {
    take_registers();
    Consumer consumer;
    consumer.start(own, shared + ONE_HOT_OFFSET, barriers, team, (role - 1) % WARPGROUPS);
    if (role == WARPGROUPS) consumer.pass_turn();
    for (int step = 0, tiles = 0;; tiles++) {
      barrier_wait(barriers.q_full(tiles), parity_of_rows(tiles));
#if LISTED
      // Stays in shared memory: registers are short.
      const Tile& tile = slots[(tiles & 1) * TILES + role - 1];
#elif ROW_BUFFERS > 1
      const Tile& tile = slots[tiles % TILE_SLOTS];
#else
      const Tile tile = *slots;
#endif
      if (uniform(tile.steps) == 0) break;
      const Params& params = launch.params(tile);
      const int steps = consumer.consume(params, tile, tiles, step);
      // A tile that stays in shared memory is another one by now.
      step += ROW_BUFFERS > 1 ? steps : uniform(tile.steps) + additional_steps(params.additional);
    }
    // The last turn passed is still to be taken.
    if (role == 1) consumer.wait_turn();
  }
}
