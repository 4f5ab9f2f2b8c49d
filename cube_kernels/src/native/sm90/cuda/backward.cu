// Gradients of attention, for sm_90a: of the queries, or, with INVERSE, of the keys and the values.
//
// Rows, which a CTA keeps, and columns, which it sweeps over, are two tensors each:
//
//              first    second          gradients
//   queries    query    dout            first = dS K            (rows: queries, columns: keys)
//   keys       key      value           first = dS^T Q, second = P^T dout           (INVERSE)
//
//   S = first first^T, P = exp(S - lse), dP = second second^T, dS = P (dP - delta)
//
// Both ways compute S and dP, so that no gradient is summed in memory: a pass writes each row once, and its
// results do not depend on the order of anything. WITH_FIRST and WITH_SECOND choose among the gradients, and
// FIRST_START and FIRST_DIM a slice of `first`, where all together have too many accumulators.
//
// A CTA is one producer warpgroup and WARPGROUPS consumer warpgroups, and stays for many tiles. A tile is 64
// rows for each consumer, an N-D box of them, stacked along one axis. The producer brings the rows once a
// tile, up to ROW_BUFFERS tiles ahead, and both tensors of the columns in steps of BLOCKS boxes, STAGES
// steps ahead, with the logsumexp and delta of columns that are queries. A consumer sums `first` of a step
// together with S and dP of the next; while it computes P and dS, others have the tensor cores. CTAs take
// tiles as they come to them, so that those of unequal length end together. With MAKES_STATISTICS a kernel for queries also makes what
// all kernels need of each query besides its vectors, see own_statistics.cuh. With SLOPES a kernel for keys leaves dS in memory for one that
// needs nothing else of it, see slope_sums.cu.
//
// With SHARED_ROWS a tile is 64 rows for both consumers, who take steps in turn. The second one's sums go through shared memory to the first one.
//
// A launch that makes statistics lets the next one begin when all of its CTAs have, and one for keys waits for the launch ahead of it. The rule: who lets
// the next one begin is not early itself, or has waited before; who is early waits before a CTA of it ends. So launches behind it need to know nothing.
//
// Registers of a consumer thread: first[FIRST_DIM / 2], second[DIM_V / 2], scores and products[ROWS / 2], weights
// and slopes[ROWS / 4], and with ROWS_IN_REGISTERS (DIM + DIM_V) / 4 more.

constexpr int K_STEPS = (DIM + 15) / 16;      // wgmma k steps of S
constexpr int K_STEPS_V = (DIM_V + 15) / 16;  // and of dP
constexpr int TURN = SHARED_ROWS ? WARPGROUPS : 1;                        // steps from one of a warpgroup to its next
constexpr int STEP_WARPS = CONSUMER_WARPS / TURN;                         // that wait for a step
constexpr int SUMS_BARRIER = 1;
// A stage belongs to one warpgroup: a wait for a phase of a barrier ends at once while the phase before is still open, so that who waits has to have waited for
// all phases ahead.
static_assert(STAGES % TURN == 0 && STAGES > TURN, "a warpgroup waits for each phase of its stages");
static_assert(!SHARED_ROWS || LISTED && WARPGROUPS == 2 && ROW_BUFFERS == 1, "sums of two warpgroups are added up, where rows were");

struct Barriers {
  u32 base;
  DEVICE u32 full(int stage) const { return base + 8 * stage; }
  DEVICE u32 empty(int stage) const { return base + 8 * (STAGES + stage); }
  DEVICE u32 rows_full(u32 slot) const { return base + 8 * (2 * STAGES + slot % ROW_BUFFERS); }
  DEVICE u32 rows_empty(u32 slot) const { return base + 8 * (2 * STAGES + ROW_BUFFERS + slot % ROW_BUFFERS); }
};
DEVICE u32 parity_of_rows(u32 slot) { return slot / ROW_BUFFERS & 1; }

// ---- producer: one thread

DEVICE void load_rows(const Space& space, const Tile& tile, const Maps& maps, u32 rows, u32 full) {
  barrier_expect(full, ROWS_LOADED);
#pragma unroll
  for (int w = 0; w < ROW_TILES; w++) {
    const Tile& own = LISTED ? (&tile)[w] : tile;
    int at[3];
    row_box(space, own, LISTED ? 0 : w, at);
    load_box(rows + w * FIRST_TILE, maps.row_first, full, chunks_of(DIM), 64, at, row_head(own.head));
    load_box(rows + SECOND_TILE_OFFSET + w * SECOND_TILE, maps.row_second, full, chunks_of(DIM_V), 64, at, row_head(own.head));
    if constexpr (MAKES_STATISTICS) load_box(rows + THIRD_TILE_OFFSET + w * SECOND_TILE, maps.statistics, full, chunks_of(DIM_V), 64, at, own.head);
  }
}

// Brings them as far as the cache.
DEVICE void prefetch_rows(const Space& space, const Tile& tile, const Maps& maps) {
#pragma unroll
  for (int w = 0; w < ROW_TILES; w++) {
    int at[3];
    row_box(space, tile, w, at);
#pragma unroll
    for (int c = 0; c < chunks_of(DIM); c++) tma_prefetch_box(maps.row_first, SWIZZLE / 2 * c, at[2], at[1], at[0], row_head(tile.head));
#pragma unroll
    for (int c = 0; c < chunks_of(DIM_V); c++) {
      tma_prefetch_box(maps.row_second, SWIZZLE / 2 * c, at[2], at[1], at[0], row_head(tile.head));
      if constexpr (MAKES_STATISTICS) tma_prefetch_box(maps.statistics, SWIZZLE / 2 * c, at[2], at[1], at[0], tile.head);
    }
  }
}

#if LISTED
// Logsumexp and delta of the queries that a step has as columns.
DEVICE void load_statistics(const Params& params, const Tile& tile, const TensorMap* map, u32 destination, u32 barrier, int head, const u64* items) {
#pragma unroll
  for (int b = 0; b < BOXES; b++) {
    const Item item(again(items + b));
    tma_load(destination + b * BLOCK * 16, map, barrier, 0, item.at[2], item.at[1], item.at[0], tile.batch * params.heads + head);
  }
}

// `slots` is where consumers find the tiles that the rows belong to, in turn; one without steps is the end.
DEVICE void produce(const Launch& launch, u32 shared, Tile* slots, const Barriers& barriers) {
  const Params& params = launch.any();
  int step = 0, slot = 0;
  for (int number = blockIdx.x; number < launch.tiles(); number = gridDim.x + atomicAdd(params.taken, 1)) {
    Tile* const tiles = slots + slot * TILES;
    const Tile& tile = *tiles;
    barrier_wait(barriers.rows_empty(slot), parity_of_rows(slot) ^ 1);
    decode_listed(params.space, params.listed, number, tiles);
    for (int w = 0; w < TILES; w++) tiles[w].first = step;
    const Maps& maps = launch.maps(tile);
    load_rows(params.space, tile, maps, shared + slot % ROW_BUFFERS * ROWS_BYTES, barriers.rows_full(slot));
    slot = slot + 1 & TILE_SLOTS - 1;
    for (int pass = 0; pass < passes(params); pass++) {
      const uint4 entry = list_of(params.listed, tile.list, pass);
      const u64* items = params.listed.items + entry.x;
      for (const u64* const end = items + entry.y * BOXES; items < end; items += BOXES, step++) {
        const int stage = stage_of(step), head = column_head(params, tile, pass);
        const u32 full = barriers.full(stage);
        barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);
        barrier_expect(full, STEP_LOADED);
        if constexpr (INVERSE) load_statistics(params, tile, maps.statistics, shared + STATISTICS_OFFSET + stage * STATISTICS_STAGE, full, head, items);
#pragma unroll
        for (int b = 0; b < BOXES; b++) {
          int at[3];
          listed_box(params.space, tile, again(items + b), at);
          load_box(shared + FIRST_OFFSET + stage * FIRST_STAGE + b * BLOCK * SWIZZLE, maps.column_first, full, chunks_of(DIM), STAGE_ROWS, at, head);
          load_box(shared + SECOND_OFFSET + stage * SECOND_STAGE + b * BLOCK * SWIZZLE, maps.column_second, full, chunks_of(DIM_V), STAGE_ROWS, at, head);
        }
      }
    }
  }
  barrier_wait(barriers.rows_empty(slot), parity_of_rows(slot) ^ 1);
  for (int w = 0; w < TILES; w++) slots[slot * TILES + w].steps = 0;
  barrier_arrive(barriers.rows_full(slot));
}
#else
// Logsumexp and delta of the queries that a step has as columns.
DEVICE void load_statistics(const Params& params, const Tile& tile, const TensorMap* map, u32 destination, u32 barrier, int head, Walk walk) {
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) {
    int at[3];
#pragma unroll
    for (int a = 0; a < 3; a++) at[a] = tile.group[a] * params.space.axes[a].pitch + tile.column[a] + walk.at[a] * column_extent(a);
    tma_load(destination + b * BLOCK * 16, map, barrier, 0, at[2], at[1], at[0], tile.batch * params.heads + head);
    if (b + 1 < BLOCKS) walk.next(tile);
  }
}

// The tile that the CTA takes when it is done with one: with a bias one of the same head of its chunk, whose table it has.
DEVICE int later_tile(const Params& params) {
  if constexpr (!BIAS) return gridDim.x + atomicAdd(params.taken, 1);
  const int chunk = params.space.chunk <= COUNTERS ? kept_chunk(params.space, gridDim.x) : 1;
  const int member = blockIdx.x % chunk;
  return member + chunk * (gridDim.x / chunk + atomicAdd(params.taken + member, 1));
}

// `slots` is where consumers find the tile that the rows belong to, in turn; one without steps is the end.
DEVICE void produce(const Launch& launch, u32 shared, Tile* slots, const Barriers& barriers) {
  int step = 0, slot = 0;
  for (int number = SUM_BIAS ? BiasSums::run()[0] : blockIdx.x; number < (SUM_BIAS ? BiasSums::run()[1] : launch.tiles());
       number = SUM_BIAS ? number + 1 : later_tile(launch.any())) {
    // Lives in shared memory for the producer, too, which has few registers.
    const Tile& tile = slots[slot];
    // Finding a tile takes long. With EARLY there are slots enough to do so while the rows before it are in use.
    if constexpr (!EARLY) barrier_wait(barriers.rows_empty(slot), parity_of_rows(slot) ^ 1);
    slots[slot].first = step;
    int index = number + first_tile(launch.any());
    launch.find(index, slots[slot]);
    const volatile Tile& again = tile;
    decode_tile(launch.params(again).space, launch.params(again).shift, BIAS ? launch.params(again).bias.samples : 0, index, slots[slot]);
    step = tile.first;  // so that no register has to hold it meanwhile
    if (tile.steps == 0) continue;
    launch.acquire(tile, slots[slot - 1 & TILE_SLOTS - 1]);
    if constexpr (EARLY && !PACKED) prefetch_rows(launch.params(again).space, tile, launch.maps(again));
    if constexpr (EARLY) barrier_wait(barriers.rows_empty(slot), parity_of_rows(slot) ^ 1);
    load_rows(launch.params(again).space, tile, launch.maps(again), shared + slot % ROW_BUFFERS * ROWS_BYTES, barriers.rows_full(slot));
    slot = slot + 1 & TILE_SLOTS - 1;
    for (int pass = 0; pass < passes(launch.params(again)); pass++) {
      Walk walk;
      walk.start(tile, 0);
      for (int i = 0; i < tile.steps + additional_steps(launch.params(again).additional); i++, step++) {
        const int stage = stage_of(step), head = column_head(launch.params(again), tile, pass);
        const u32 full = barriers.full(stage);
        barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);
        barrier_expect(full, STEP_LOADED);
        if (INVERSE && step == 0) wait_for_launch_ahead();
        if constexpr (INVERSE)
          load_statistics(launch.params(again), tile, launch.maps(again).statistics, shared + STATISTICS_OFFSET + stage * STATISTICS_STAGE, full, head, walk);
        const bool more = ADDITIONAL && i >= tile.steps;
        int at[BLOCKS][3];
        if (more) additional_boxes(tile, (i - tile.steps) * ROWS, at);
        else column_boxes(launch.params(again).space, tile, walk, at);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
          load_box(shared + FIRST_OFFSET + stage * FIRST_STAGE + b * BLOCK * SWIZZLE, more ? launch.maps(again).more_key : launch.maps(again).column_first, full, chunks_of(DIM), STAGE_ROWS, at[b], head);
          load_box(shared + SECOND_OFFSET + stage * SECOND_STAGE + b * BLOCK * SWIZZLE, more ? launch.maps(again).more_value : launch.maps(again).column_second, full, chunks_of(DIM_V), STAGE_ROWS, at[b], head);
        }
      }
    }
  }
  barrier_wait(barriers.rows_empty(slot), parity_of_rows(slot) ^ 1);
  slots[slot].steps = 0;
  barrier_arrive(barriers.rows_full(slot));
}
#endif

// ---- consumers

// One consumer warpgroup.
struct Consumer {
  u32 shared;
  Barriers barriers;
  int warp, lane;
  int slot;                     // of the tile
  // What a specialisation does not use takes no registers.
  float scores[SCORES], products[SCORES];
  float first[WITH_FIRST ? FIRST_DIM / 2 : 1], second[WITH_SECOND ? DIM_V / 2 : 1];
  u32 slopes[FRAGMENTS], weights[FRAGMENTS];
  u32 row_first_fragments[4 * K_STEPS], row_second_fragments[4 * K_STEPS_V];
  float lse[2], delta[2];
  OneHotRows one_hot;

  DEVICE void release(u32 barrier) { if (lane == 0) barrier_arrive(barrier); }
  DEVICE void wait_columns(int step) { barrier_wait(barriers.full(stage_of(step)), parity_of(step)); }
  DEVICE void release_columns(int step) { release(barriers.empty(stage_of(step))); }

  // With a bias, found again where it is used: branches ahead of the loop take a register for it.
  DEVICE u32 base() const { return BIAS ? shared_base() : shared; }
  DEVICE u32 rows() const { return base() + (u32)slot % ROW_BUFFERS * ROWS_BYTES; }
  // Found again where it is needed: registers are short.
  DEVICE int warpgroup() const { return WARPGROUPS == 1 ? 0 : uniform(threadIdx.x / 128) - 1; }
  DEVICE int row_tile() const { return SHARED_ROWS ? 0 : warpgroup(); }

  DEVICE void start(u32 shared_, const Barriers& barriers_) {
    shared = shared_;
    barriers = barriers_;
    warp = threadIdx.x % 128 / 32;
    lane = threadIdx.x % 32;
    one_hot.start_lane(lane);
  }

  // A step that no row of this warpgroup sees.
  DEVICE void skip(int step) {
    wait_columns(step);
    __syncwarp();
    release_columns(step);
  }

  DEVICE void keep_rows() {
    const int tile = row_tile();
    load_fragments(rows() + tile * FIRST_TILE, warp * 16 + lane / 4, lane, row_first_fragments);
    load_fragments(rows() + SECOND_TILE_OFFSET + tile * SECOND_TILE, warp * 16 + lane / 4, lane, row_second_fragments);
    if constexpr (SHARED_ROWS) return;
    __syncwarp();
    release(barriers.rows_empty(slot));
  }

  // scores = mask + S, or are added to with BIAS_FIRST.
  DEVICE void begin_scores(int step) {
    const Matrix row_first = swizzled(rows() + row_tile() * FIRST_TILE, 16, 8 * SWIZZLE);
    const Matrix column_first = swizzled(base() + FIRST_OFFSET, 16, 8 * SWIZZLE).behind(stage_of(step) * (FIRST_STAGE >> 4));
    wgmma_fence();
    if constexpr (MASK == ONE_HOT)
      wgmma_mask(scores, one_hot.fragment[0], one_hot.fragment[1], one_hot.fragment[2], one_hot.fragment[3], unswizzled(base() + ONE_HOT_OFFSET, 128, 256).at(0));
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
      const int accumulate = MASK == ONE_HOT || BIAS_FIRST || k > 0;
      const u64 column = column_first.at(k / 4 * (STAGE_ROWS * SWIZZLE >> 4) + k % 4 * 2);
#if ROWS_IN_REGISTERS
      wgmma_scores(scores, row_first_fragments[4 * k], row_first_fragments[4 * k + 1], row_first_fragments[4 * k + 2], row_first_fragments[4 * k + 3], column, accumulate);
#else
      wgmma_scores(scores, row_first.at(k / 4 * 512 + k % 4 * 2), column, accumulate);
#endif
    }
    wgmma_commit();
  }

  // products = dP
  DEVICE void begin_products(int step) {
    const Matrix row_second = swizzled(rows() + SECOND_TILE_OFFSET + row_tile() * SECOND_TILE, 16, 8 * SWIZZLE);
    const Matrix column_second = swizzled(base() + SECOND_OFFSET, 16, 8 * SWIZZLE).behind(stage_of(step) * (SECOND_STAGE >> 4));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K_STEPS_V; k++) {
      const u64 column = column_second.at(k / 4 * (STAGE_ROWS * SWIZZLE >> 4) + k % 4 * 2);
#if ROWS_IN_REGISTERS
      wgmma_scores(products, row_second_fragments[4 * k], row_second_fragments[4 * k + 1], row_second_fragments[4 * k + 2], row_second_fragments[4 * k + 3], column, k > 0);
#else
      wgmma_scores(products, row_second.at(k / 4 * 512 + k % 4 * 2), column, k > 0);
#endif
    }
    wgmma_commit();
  }

  // first += dS K or dS^T Q
  DEVICE void accumulate_first(int step) {
#if WITH_FIRST
    const Matrix columns = swizzled(base() + FIRST_OFFSET + FIRST_START / 64 * STAGE_ROWS * SWIZZLE, STAGE_ROWS * SWIZZLE, 8 * SWIZZLE).behind(stage_of(step) * (FIRST_STAGE >> 4));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < FRAGMENTS / 4; k++)
      wgmma_first(first, slopes[4 * k], slopes[4 * k + 1], slopes[4 * k + 2], slopes[4 * k + 3], columns.at(k * SWIZZLE));
    wgmma_commit();
#endif
  }

  // second += P^T dout
  DEVICE void accumulate_second(int step) {
#if WITH_SECOND
    const Matrix columns = swizzled(base() + SECOND_OFFSET, STAGE_ROWS * SWIZZLE, 8 * SWIZZLE).behind(stage_of(step) * (SECOND_STAGE >> 4));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < FRAGMENTS / 4; k++)
      wgmma_second(second, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3], columns.at(k * SWIZZLE));
    wgmma_commit();
#endif
  }

  // Turns scores into P.
  DEVICE void exponentiate(int step, float scale) {
    const u32 statistics = shared + STATISTICS_OFFSET + stage_of(step) * STATISTICS_STAGE + lane % 4 * 32 + 8;
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++) {
      float minus[4] = {-lse[0], -lse[0], -lse[1], -lse[1]};
      if constexpr (INVERSE) {
        minus[0] = minus[2] = -load_float(statistics + 128 * j);
        minus[1] = minus[3] = -load_float(statistics + 128 * j + 16);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) scores[4 * j + e] = exp2_approx(fmaf(scores[4 * j + e], scale, minus[e]));
    }
  }

#if SLOPES
  static_assert(INVERSE && WITH_FIRST && SPLITS == 1 && ROWS == 64 && ROW_BOX == 64 && ONE_BLOCK == 0, "blocks of 64 keys and 64 queries");
  // Each register of a warp's is a piece of the block. Rows behind the last key have none: they are summed with zeros, and what overflows would
  // not be zero then. In several axes boxes end with the keys.
  DEVICE void leave_slopes(u32* at, const Tile& tile) {
    auto leave = [&](int left) {
#pragma unroll
      for (int i = 0; i < FRAGMENTS; i++) at[i * (SLOPES_PIECE / 4)] = i % 2 * 8 < left ? slopes[i] : 0;
    };
    const int rows = RANK > 1 ? 64 : uniform(tile.rows[2]) - uniform(tile.row[2]) - 64 * row_tile();
    if (rows < 64) leave(rows - warp * 16 - lane / 4);
    else leave(16);
  }
#endif

  // Turns products into dS.
  DEVICE void differentiate(int step) {
    const u32 statistics = shared + STATISTICS_OFFSET + stage_of(step) * STATISTICS_STAGE + lane % 4 * 32 + 12;
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++) {
      float mean[4] = {delta[0], delta[0], delta[1], delta[1]};
      if constexpr (INVERSE) {
        mean[0] = mean[2] = load_float(statistics + 128 * j);
        mean[1] = mean[3] = load_float(statistics + 128 * j + 16);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) products[4 * j + e] = scores[4 * j + e] * (products[4 * j + e] - mean[e]);
    }
  }

  // Has the bias of a head in shared memory. Sums of another head's are at their end then, and slots empty.
  DEVICE void find_bias(const Params& params, const BiasTable& table, int head) {
    const int known = uniform(table.head());
    // By votes, so that the compiler knows that lanes stay together.
    if (__all_sync(~0u, known == head)) return;
    named_sync(BIAS_BARRIER, 32 * CONSUMER_WARPS);
    if (SUM_BIAS && known >= 0) BiasSums::flush(params.bias, known);
    if (head >= 0) table.fill(params.bias, head, params.scale_log2);
    named_sync(BIAS_BARRIER, 32 * CONSUMER_WARPS);
  }

  // A tile whose rows have arrived.
  DEVICE void consume(const Params& params, const Results& results, const Tile& tile) {
    const Space& space = params.space;
    const float scale_log2 = params.scale_log2;
    const int own = row_tile();
    int row_at[2][PLACE];
    rows_of_lane(tile, own, warp, lane, row_at);
#if LISTED
    // Each pass has a list, whose steps are for all of the warpgroup or, without rows, for none; or, with SHARED_ROWS, every second one.
    int low = 0, pass = 0, steps, high, whole;
#else
    const int steps = uniform(tile.steps) + additional_steps(params.additional);
    const Range visible = visible_steps(space, tile, own);
    const int low = visible.low, high = steps > tile.steps && visible.low < visible.high ? steps : visible.high;
#endif
#if MAKES_STATISTICS
    OwnStatistics statistics;
    statistics.start(params, results, tile, rows() + SECOND_TILE_OFFSET + own * SECOND_TILE, rows() + THIRD_TILE_OFFSET + own * SECOND_TILE, warp, lane, row_at);
#else
    if constexpr (!INVERSE) read_statistics(params, tile, row_at);
#endif
    if constexpr (ROWS_IN_REGISTERS) keep_rows();

    LinearRows linear;
    if constexpr (MASK == LINEAR) linear.start_tile(space, tile, own, row_at);
    BiasRows bias;
    const BiasTable table = {memory + TABLE_OFFSET};
    int first_entry = 0;         // of the bias, of the warp's first row
    int block_entry = 0;         // from there to that of the coming step
    int sums_slot = 0, coming_slot = 0;  // for the slopes of the step and of the coming one
    if constexpr (MASK == ONE_HOT) one_hot.start_tile(space, tile, row_at);
    int step = uniform(tile.first);
    Walk walk;
#if SLOPES
    u32* slopes_at;              // this lane's, of the step, or in several axes of the CTA's first one
    int block = 0, coming_block = 0;  // from there to that of the step, and of the coming one
#endif
    // What a coming step needs of the mask, up to what `fire` does when no wgmma is in flight.
    auto aim = [&](int i) {
#if SLOPES
      if constexpr (RANK > 1) {
        coming_block = 0;
#pragma unroll
        for (int a = FIRST_AXIS; a < 3; a++) coming_block += walk.at[a] * params.slopes.pitch[a];
        if (MASK != ONE_HOT) walk.next(tile);
      }
#endif
      if constexpr (BIAS) block_entry = BiasRows::block_at(walk);
      if constexpr (SUM_BIAS) coming_slot = BiasSums::slot_of(walk, i);
      if (BIAS && MASK != ONE_HOT) walk.next(tile);
      if (MASK != ONE_HOT) return;
      if (ADDITIONAL && i >= tile.steps) one_hot.aim_nowhere();
      else one_hot.aim(tile, walk);
    };
    auto fire = [&](bool is_first) {
      if (MASK == ONE_HOT) one_hot.fire(is_first);
    };
    // Comes between exponentials and the wait for dP: a branch, over which the compiler does not move that wait.
    // Else it moves it ahead of the exponentials, which then do not overlap.
    auto wait_next_columns = [&](int i) {
      if (i + TURN < high) wait_columns(step + i + TURN);
    };
    // From masked scores and dP, which may still be on its way, to what the gradients are summed from, and the
    // sum of `second`.
    auto has_bias = [&](int i) { return BIAS && (!ADDITIONAL || i < tile.steps); };
    // Where the slopes of a step are to go, if that can change from one to the next.
    auto aim_sums = [&](int i) {
      if (SUM_BIAS && !AIMED_BY_TILE && has_bias(i)) BiasSums::aim(sums_slot, first_entry + block_entry, step + i, table.is_wrong(), lane);
    };
    auto weigh = [&](int i) {
      exponentiate(step + i, scale_of(params, scale_log2));
      if constexpr (WITH_SECOND) {
        pack_fragments(scores, weights);
        accumulate_second(step + i);
        wait_next_columns(i);
        wgmma_wait<1>();
      } else {
        pin(scores);
        wait_next_columns(i);
        wgmma_wait<0>();
      }
      if constexpr (WITH_FIRST) {
        pin(products);
        differentiate(step + i);
        if (SUM_BIAS && has_bias(i)) BiasSums::put(products, sums_slot, lane);
      }
      wgmma_wait<0>();
      if constexpr (WITH_SECOND) pin(second);
      if constexpr (WITH_FIRST) pack_fragments(products, slopes);
#if SLOPES
      leave_slopes(slopes_at + (i64)block * (SLOPES_BLOCK / 4), tile);
      if constexpr (RANK == 1) slopes_at += SLOPES_BLOCK / 4;
#endif
      fire(false);
    };
    // S, masked, and dP of step `i`, and with them `first` of the step before. LATE has dP wait for the others,
    // and so their registers. A warp stops at a wgmma while others fill the queue: dP comes right before the
    // exponentials, with no branch in between, so that the compiler can issue them in turn.
    auto begin = [&](int i, bool is_first) {
      constexpr bool is_early = WITH_FIRST && !LATE;
      if constexpr (BIAS) {
        // Before any product is in flight.
        if (has_bias(i)) bias.load(table, block_entry, scores);
        else clear(scores);
      }
      if (WITH_FIRST && !is_first) accumulate_first(step + i - TURN);
      begin_scores(step + i);
      if constexpr (is_early) begin_products(step + i);
      sums_slot = coming_slot;
#if SLOPES
      block = coming_block;
#endif
      aim_sums(i);
      aim(i + 1);
      wgmma_wait<is_early ? 1 : 0>();
      pin(scores);
      if (!is_first) release_columns(step + i - TURN);
      mask_step(scores, linear, tile, i, params.additional, lane);
#if LISTED
      if (i >= whole) mask_items(scores, params.listed, tile, params.listed.items + list_of(params.listed, tile.list, pass).x + i * BOXES, warp, lane);
#endif
      if constexpr (WITH_FIRST && LATE) begin_products(step + i);
    };

    clear(first);
    clear(second);
#if LISTED
#pragma unroll 1
    for (; pass < passes(params); pass++, step += steps) {
      const uint4 entry = list_of(params.listed, tile.list, pass);
      steps = uniform(entry.y);
      high = uniform(tile.rows[2]) > 0 ? steps : 0;
      whole = uniform(entry.z);
      if constexpr (SHARED_ROWS) low = (step + warpgroup()) % TURN;
#else
#pragma unroll 1
    for (int pass = 0; pass < passes(params); pass++, step += steps) {
#endif
      if constexpr (BIAS) {
        bias.start_tile(tile, row_at, low, lane);
        const int head = query_head(params, tile, pass);
        if constexpr (SUM_BIAS) {
          first_entry = uniform(bias.entry);
          BiasSums::begin_tile(space, tile, row_at, first_entry, step, table.head() == head, table.is_wrong(), lane);
        }
        find_bias(params, table, head);
      }
      for (int i = 0; !SHARED_ROWS && i < low; i++) skip(step + i);
      if (low < high) {
#if LISTED
        walk.start(tile, 0);
#else
        walk = visible_walk(space, tile, own, low);
#endif
#if SLOPES
        const int head = tile.batch * params.heads + column_head(params, tile, pass);
        int keys[3], queries[3];
        row_number(tile, own, keys);
        column_number(tile, queries);
        if constexpr (RANK == 1) queries[2] += low;
        slopes_at = params.slopes.blocks + (i64)block_of_slopes(params.slopes, head, keys, queries) * (SLOPES_BLOCK / 4) + warp * FRAGMENTS * (SLOPES_PIECE / 4) + lane;
#endif
        aim(low);
        fire(true);
        wait_columns(step + low);
        begin(low, true);
#if MAKES_STATISTICS
        finish_statistics(params, results, tile, statistics);
#endif
        weigh(low);
#pragma unroll 1
        for (int i = low + TURN; i < high; i += TURN) {
          begin(i, false);
          weigh(i);
        }
        const int last = high - 1 - (high - 1 - low) % TURN;
        if constexpr (WITH_FIRST) {
          accumulate_first(step + last);
          wgmma_wait<0>();
          pin(first);
        }
        release_columns(step + last);
      }
#if MAKES_STATISTICS
      else finish_statistics(params, results, tile, statistics);
#endif
      for (int i = high; !SHARED_ROWS && i < steps; i++) skip(step + i);
    }
    if constexpr (SHARED_ROWS) {
      if constexpr (WITH_FIRST) add_up(first);
      if constexpr (WITH_SECOND) add_up(second);
      shared_proxy_fence();
    }
    if constexpr (SHARED_ROWS || !ROWS_IN_REGISTERS) {
      __syncwarp();
      release(barriers.rows_empty(slot));
    }
    if (!SHARED_ROWS || warpgroup() == 0) finish(params, tile);
  }

  // Adds the second warpgroup's sums to those of the first one.
  template <int N> DEVICE void add_up(float (&sums)[N]) {
    float* const at = (float*)memory + threadIdx.x % 128;
    // Nobody reads the rows, or other sums, any more.
    named_sync(SUMS_BARRIER, 32 * CONSUMER_WARPS);
    if (warpgroup() > 0) {
#pragma unroll
      for (int i = 0; i < N; i++) at[i * 128] = sums[i];
    }
    named_sync(SUMS_BARRIER, 32 * CONSUMER_WARPS);
    if (warpgroup() == 0) {
#pragma unroll
      for (int i = 0; i < N; i++) sums[i] += at[i * 128];
    }
  }

  // Rows that do not exist may be those of another sample, whose slopes belong to no sum.
  DEVICE void forget_statistics(int r) {
    lse[r] = SUM_BIAS ? -NEG_INF : 0.f;
    delta[r] = 0.f;
  }

  DEVICE void take_statistics(const float4& statistics, int r) {
    lse[r] = statistics.z;
    delta[r] = statistics.w;
  }

  DEVICE void read_statistics(const Params& params, const Tile& tile, const int (&at)[2][PLACE]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      forget_statistics(r);
      if (row_exists(tile, at[r])) take_statistics(statistics_of(params, tile, head_of(tile, at[r]), at[r]), r);
    }
  }

#if MAKES_STATISTICS
  // Behind the first product, as the logsumexps are on their way until then.
  DEVICE void finish_statistics(const Params& params, const Results& results, const Tile& tile, const OwnStatistics& own) {
    int at[2][PLACE];
    rows_of_lane(tile, row_tile(), warp, lane, at);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      forget_statistics(r);
      if (row_exists(tile, at[r])) take_statistics(own.finish(params, results, tile, lane, at[r], r), r);
    }
  }
#endif

  // Writes the rows, and computes those again that became infinite or NaN.
  DEVICE void finish(const Params& params, const Tile& tile) {
    int row_at[2][PLACE];
    rows_of_lane(tile, row_tile(), warp, lane, row_at);
    bool broken[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const i64 row = row_index(params.space, tile, row_at[r]);
      const bool exists = row_exists(tile, row_at[r]);
      float poison = 0.f;
      if constexpr (WITH_FIRST) poison += store_row(first_gradient(params, row), first, r, params.scale, exists, lane);
      if constexpr (WITH_SECOND) poison += store_row((Gradient*)params.second + row * DIM_V, second, r, 1.f, exists, lane);
      broken[r] = exists && !(poison == 0.f);
    }
    for_each_broken(broken, row_at, [&](const int (&at)[PLACE]) { repair_row(params, tile, at, lane); });
  }
};

extern "C" __global__ void __launch_bounds__(128 * (WARPGROUPS + 1), CTAS)
#if PACKED
attention_backward(const __grid_constant__ Launch launch) {
  const Results results = {};
#else
attention_backward(const __grid_constant__ TensorMap map_row_first, const __grid_constant__ TensorMap map_row_second,
                   const __grid_constant__ TensorMap map_column_first, const __grid_constant__ TensorMap map_column_second,
                   const __grid_constant__ TensorMap map_more_key, const __grid_constant__ TensorMap map_more_value,
                   const __grid_constant__ TensorMap map_statistics, const __grid_constant__ Params params
#if SUM_BIAS
                   , const __grid_constant__ Runs runs
#endif
#if MAKES_STATISTICS
                   , const __grid_constant__ Results results
#endif
                   ) {
#if !MAKES_STATISTICS
  const Results results = {};
#endif
  const Maps maps = {&map_row_first, &map_row_second, &map_column_first, &map_column_second, &map_more_key, &map_more_value, &map_statistics};
  const Launch launch = {params, maps};
#endif
  if constexpr (MAKES_STATISTICS) let_next_launch_begin();
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const Barriers barriers = {shared + BARRIER_OFFSET};
  // From lane 0, so that the compiler knows it to be the same in a warp.
  const int role = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(barriers.full(i), 1);
      barrier_init(barriers.empty(i), STEP_WARPS);
    }
    for (int i = 0; i < ROW_BUFFERS; i++) {
      barrier_init(barriers.rows_full(i), 1);
      barrier_init(barriers.rows_empty(i), CONSUMER_WARPS);
    }
    barrier_init_fence();
    if constexpr (BIAS) BiasTable{memory + TABLE_OFFSET}.start();
#if SUM_BIAS
    for (int i = 0; i < 2; i++) BiasSums::run()[i] = runs.first[blockIdx.x + i];
#endif
#if !PACKED
    tma_prefetch(maps.row_first);
    tma_prefetch(maps.row_second);
    tma_prefetch(maps.column_first);
    tma_prefetch(maps.column_second);
#endif
  }
  if constexpr (MASK == ONE_HOT) {
    write_one_hot(memory + ONE_HOT_OFFSET);
    shared_proxy_fence();
  }
  if constexpr (ROW_BOX < 64 || ROWS < STAGE_ROWS) {
    // Rows that no box fills. They belong to nobody: where sums lay in between, they have what is left of these.
    constexpr int CLEARED = ROWS < STAGE_ROWS ? ONE_HOT_OFFSET : FIRST_OFFSET;
    for (int i = threadIdx.x; i < CLEARED / 4; i += blockDim.x) ((u32*)memory)[i] = 0;
    shared_proxy_fence();
  }
  if constexpr (SUM_BIAS) BiasSums::start(launch.any().bias, launch.any().heads);
  launch.start(((Tile*)(memory + TILE_OFFSET))[TILE_SLOTS - 1]);
  __syncthreads();
  if (role == 0) {
    give_registers();
    if (threadIdx.x == 0) produce(launch, shared, (Tile*)(memory + TILE_OFFSET), barriers);
  } else {
    take_registers();
    Consumer consumer;
    consumer.start(shared, barriers);
    // Rows that are computed again read statistics, too.
    if constexpr (INVERSE && !LISTED) wait_for_launch_ahead();
    for (consumer.slot = 0;; consumer.slot = uniform(consumer.slot + 1 & TILE_SLOTS - 1)) {
      barrier_wait(barriers.rows_full(consumer.slot), parity_of_rows(consumer.slot));
      // Stays in shared memory: registers are short. The producer writes the next one to another slot.
      const Tile& tile = ((const Tile*)(memory + TILE_OFFSET))[LISTED ? consumer.slot * TILES + consumer.row_tile() : consumer.slot];
      if (uniform(tile.steps) == 0) break;
      consumer.consume(launch.params(tile), results, tile);
    }
    if constexpr (SUM_BIAS) {
      const BiasTable table = {memory + TABLE_OFFSET};
      BiasSums::finish(table.is_wrong(), consumer.lane);
      consumer.find_bias(launch.any(), table, -1);
      if (uniform(table.is_wrong())) BiasSums::recount(launch.any(), *(Tile*)(memory + TILE_OFFSET), consumer.lane);
    }
  }
}
