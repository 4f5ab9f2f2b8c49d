// The lists of native sparse attention, for sm_90a; `sparse/selection.rs` says what they are.
//
// A row is the query that scores for a list, for one of the heads that share the list: GROUP_ROWS rows to a list, of which those behind
// GROUP are padding that weighs nothing. A CTA has 64 rows for each of its WARPGROUPS, in shared memory, which leaves registers for many
// warps: what one does between products, others hide. It walks twice over the compressed keys that its rows see, in steps of 64 that TMA brings: first for the logsumexp of each row, unless that
// is given, then for the probabilities. These are summed over the heads of a list, first within a lane, then between lanes that swap halves of what they
// have, and lie in shared memory as a ring, of which blocks that are complete take their scores. A warp has some lists, each with its best
// so far in order across lanes, and no score is written anywhere else.
//
// Sums have one order wherever a row lies, so that a list depends on what its query sees, on logsumexps that are given, and on nothing else.
//
// Compile-time parameters: BF16, DIM, GROUP, GROUP_ROWS, WARPGROUPS, RATIO (compressed blocks from one block to the next), REACH (that
// overlap a point), RING (probabilities of a ring, a power of two), SUPER (blocks are super-blocks).

constexpr int KEYS = 64, STAGES = 4, AHEAD = 2;
constexpr int PANELS = (DIM + 63) / 64, K_STEPS = (DIM + 15) / 16;
constexpr int STAGE = PANELS * KEYS * 128;    // also of the rows of a warpgroup
constexpr int WARPS = 4 * WARPGROUPS;
constexpr int LISTS = 64 * WARPGROUPS / GROUP_ROWS;                  // of a CTA
constexpr int WARP_LISTS = GROUP_ROWS < 16 ? 16 / GROUP_ROWS : 1;     // that a warp has sums of
constexpr int PARTS = GROUP_ROWS > 16 ? GROUP_ROWS / 16 : 1;          // warps that have sums of a list
// Exchanges by which lanes sum rows, and the columns of 16 that each has then.
constexpr int EXCHANGES = GROUP_ROWS >= 8 ? 3 : GROUP_ROWS == 4 ? 2 : GROUP_ROWS == 2 ? 1 : 0;
constexpr int LEFT = 16 >> EXCHANGES;
constexpr int ROWS_OFFSET = STAGES * STAGE;
constexpr int RING_OFFSET = ROWS_OFFSET + WARPGROUPS * STAGE;
constexpr int LIST_OFFSET = RING_OFFSET + 4 * RING * WARPS * WARP_LISTS;
constexpr int BARRIER_OFFSET = LIST_OFFSET + 16 * LISTS;
static_assert(RING >= KEYS + RATIO + REACH - 2 && (RING & (RING - 1)) == 0, "blocks are scored once they are complete");

extern __shared__ __align__(1024) u8 memory[];

struct Params {
  int* lists;            // [batch, tiles, heads_kv, entries]
  const u16* query;
  const float* lse;      // [batch, rows, heads], where it is given
  i64 strides[3];        // of the query, in elements: batch, row, head
  int batch, heads_kv, tiles;
  int rows, has_lse;
  int offset;            // where the first query stands
  int query_tile, cmp_block, cmp_stride;
  int size;              // tokens of a block, or compressed blocks of a super-block
  int num_init, num_local, blocks, entries;
  float scale_log2;      // without its sign
  u32 signs;             // what turns the sign of two elements where the scale is negative
};

// A list: `front` forced blocks, `free` of those before `middle`, and the forced ones from there to `end`.
struct List { int front, middle, end, free; };
DEVICE int candidates(const List& list) { return list.middle - list.front; }
DEVICE bool is_scored(const List& list) { return list.free > 0 && candidates(list) > list.free; }

DEVICE int complete(const Params& params, int tokens) {
  return tokens < params.cmp_block ? 0 : (tokens - params.cmp_block) / params.cmp_stride + 1;
}
// Compressed blocks that the query of a tile sees.
DEVICE int seen_by(const Params& params, int tile) {
  return tile < params.tiles ? complete(params, params.offset + tile * params.query_tile + 1) : 0;
}
DEVICE List list_of(const Params& params, int tile) {
  List list = {0, 0, 0, 0};
  if (tile >= params.tiles) return list;
  const int at = params.offset + tile * params.query_tile;
#if SUPER
  list.middle = seen_by(params, tile) / params.size;
  list.end = (complete(params, at + params.query_tile) + params.size - 1) / params.size;
#else
  const int own = at / params.size + 1;
  list.end = (at + params.query_tile - 1) / params.size + 1;
  list.middle = own > params.num_local ? own - params.num_local : 0;
  list.front = params.num_init < list.middle ? params.num_init : list.middle;
#endif
  const int forced = list.front + list.end - list.middle;
  list.free = forced < params.entries ? params.entries - forced : 0;
  return list;
}

// The first word of the matrix of rows of 64 elements at an address, of rows or keys, as TMA lays them; and that of a step further on.
DEVICE u32 matrix_at(u32 address) { return (address & 0x3FFFF) >> 4 | 1 << 16; }
DEVICE u64 matrix_of(u32 first, int k) {
  return (u64)(1 << 30 | 1024 >> 4) << 32 | first + (k / 4 * KEYS * 128 + k % 4 * 32 >> 4);
}

// The tiles of keys on their way: those of both walks, one after the other.
struct Keys {
  u32 shared;
  const TensorMap* map;
  int head, batch, lse_steps, all;

  DEVICE u32 full(int stage) const { return shared + BARRIER_OFFSET + 8 * stage; }
  DEVICE u32 empty(int stage) const { return shared + BARRIER_OFFSET + 8 * (STAGES + stage); }
  DEVICE void load(int number) const {
    const int stage = number % STAGES, step = number < lse_steps ? number : number - lse_steps;
    if (number >= STAGES) barrier_wait(empty(stage), number / STAGES - 1 & 1);
    barrier_expect(full(stage), STAGE);
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
      tma_load(shared + stage * STAGE + panel * KEYS * 128, map, full(stage), panel * 64, step * KEYS, batch, 0, head);
  }
};

// Scores of a warpgroup's rows with the keys of a tile. The first thread brings the tile that comes AHEAD of it.
DEVICE void multiply(const Keys& keys, u32 number, u32 rows, float (&scores)[KEYS / 2]) {
  if (threadIdx.x == 0 && (int)number + AHEAD < keys.all) keys.load(number + AHEAD);
  __syncwarp();
  const u32 stage = number % STAGES, tile = matrix_at(uniform(keys.shared + stage * STAGE));
  barrier_wait(keys.full(stage), number / STAGES & 1);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K_STEPS; k++)
    wgmma_scores(scores, matrix_of(rows, k), matrix_of(tile, k), k > 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(scores);
  if (threadIdx.x % 32 == 0) barrier_arrive(keys.empty(stage));
}

// The best so far of a list, best first; one that is not there is worse than any score.
struct Best {
  float score;
  int block;
  DEVICE void start() { score = -1.f, block = -1; }
  // Takes a score in its place: those that are worse move a lane on. Among equals the earlier one stays in front.
  DEVICE void insert(float next, int number, int lane) {
    const float score_above = __shfl_up_sync(~0u, score, 1);
    const int block_above = __shfl_up_sync(~0u, block, 1);
    const bool moves = score < next, follows = lane > 0 && score_above < next;
    score = !moves ? score : follows ? score_above : next;
    block = !moves ? block : follows ? block_above : number;
  }
  // Takes a score of each lane, of blocks from `first` on in ascending order, so that among equals the lower number stays in front.
  // What has been among the best `most` when it was looked at is inserted without another look: behind them it does no harm.
  DEVICE void take(float mine, int first, int most, int lane) {
    const float least = __shfl_sync(~0u, score, most - 1);
    u32 waiting = __ballot_sync(~0u, mine > least);
    while (waiting) {
      const int from = __ffs(waiting) - 1;
      waiting &= waiting - 1;
      insert(__shfl_sync(~0u, mine, from), first + from, lane);
    }
  }
};

// Sums over the heads of lists, of one row of each lane; a lane is left with LEFT of its 16 columns.
template <int HALF = 8> DEVICE void sum_heads(float (&values)[16], int lane) {
  if constexpr (HALF >= LEFT) {
    const int other = 4 * HALF / LEFT;
    const bool upper = lane & other;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      const float given = upper ? values[i] : values[i + HALF];
      values[i] = (upper ? values[i + HALF] : values[i]) + __shfl_xor_sync(~0u, given, other);
    }
    sum_heads<HALF / 2>(values, lane);
  }
}

// A block's score: its compressed blocks' probabilities, each as often as it shares a stride with the block. Before the first one
// the ring has zeros.
DEVICE float score_of(const float* ring, int block) {
  constexpr bool IS_WHOLE = (RATIO & RATIO - 1) == 0;  // a block's own do not wrap
  const float* const own = ring + (block * RATIO & RING - 1);
  float score = 0.f;
#pragma unroll(RATIO + REACH - 1 > 16 ? 1 : RATIO + REACH - 1)
  for (int i = 0; i < RATIO + REACH - 1; i++) {
    const int x = i - (REACH - 1);
    const int most = i + 1 < RATIO ? i + 1 : RATIO, before = x > 0 ? x : 0;
    const float* const at = IS_WHOLE && x >= 0 ? own + x : ring + (block * RATIO + x & RING - 1);
    float probability = at[0];
#pragma unroll
    for (int part = 1; part < PARTS; part++) probability += at[part * RING];
    score += (float)(most - before) * probability;
  }
  // What is no number counts as nothing, so that lists are always whole.
  return score > 0.f ? score : 0.f;
}

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
select_blocks(const __grid_constant__ TensorMap map_key, const __grid_constant__ Params params) {
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  // Tiles at the end, which see most, come first.
  const int pairs = params.batch * params.heads_kv, groups = (params.tiles + LISTS - 1) / LISTS;
  const int pair = blockIdx.x % pairs, first_tile = (groups - 1 - (int)blockIdx.x / pairs) * LISTS;
  const int batch = pair / params.heads_kv, head = pair % params.heads_kv;
  List* const own = (List*)(memory + LIST_OFFSET);
  for (int i = threadIdx.x; i < LISTS; i += 128 * WARPGROUPS) own[i] = list_of(params, first_tile + i);
  for (int i = threadIdx.x; i < RING * WARPS * WARP_LISTS; i += 128 * WARPGROUPS) ((float*)(memory + RING_OFFSET))[i] = 0.f;

  Keys keys = {shared, &map_key, head, batch, 0, 0};
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(keys.full(i), 1);
      barrier_init(keys.empty(i), WARPS);
    }
    barrier_init_fence();
    tma_prefetch(&map_key);
  }
  __syncthreads();
  int any = 0, least_seen, score_steps = 0;
  for (int i = 0; i < LISTS; i += 32) any |= __any_sync(~0u, i + lane < LISTS && is_scored(own[i + lane < LISTS ? i + lane : 0]));
  least_seen = seen_by(params, first_tile);
  if (any) {
    const int last = (first_tile + LISTS < params.tiles ? first_tile + LISTS : params.tiles) - 1;
    keys.lse_steps = params.has_lse ? 0 : (seen_by(params, last) + KEYS - 1) / KEYS;
    score_steps = (own[last - first_tile].middle * RATIO + KEYS - 1) / KEYS;
    keys.all = keys.lse_steps + score_steps;
    if (threadIdx.x == 0)
      for (int i = 0; i < AHEAD && i < keys.all; i++) keys.load(i);
  }

  // The rows of a warp, sixteen bytes a lane; those that are not there are zero.
  const u32 rows = shared + ROWS_OFFSET + warp / 4 * STAGE;
#pragma unroll 1
  for (int i = lane; i < 16 * 8 * PANELS; i += 32) {
    const int row = i / (8 * PANELS), chunk = i % (8 * PANELS), of_cta = warp * 16 + row;
    const int tile = first_tile + of_cta / GROUP_ROWS, member = of_cta % GROUP_ROWS;
    uint4 some = make_uint4(0, 0, 0, 0);
    if (tile < params.tiles && member < GROUP && chunk * 8 < DIM) {
      const i64 at = batch * params.strides[0] + (i64)tile * params.query_tile * params.strides[1] + (head * GROUP + member) * params.strides[2];
      some = *(const uint4*)(params.query + at + chunk * 8);
      some = make_uint4(some.x ^ params.signs, some.y ^ params.signs, some.z ^ params.signs, some.w ^ params.signs);
    }
    const int of_group = of_cta % 64;
    *(uint4*)(memory + (rows - shared) + chunk / 8 * KEYS * 128 + of_group * 128 + (chunk % 8 ^ of_group % 8) * 16) = some;
  }
  shared_proxy_fence();
  named_sync(1 + warp / 4, 128);
  const u32 matrix = matrix_at(rows);

  int seen[2];
  bool exists[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = warp * 16 + lane / 4 + 8 * r, tile = first_tile + row / GROUP_ROWS;
    exists[r] = tile < params.tiles && row % GROUP_ROWS < GROUP;
    seen[r] = seen_by(params, tile);
  }

  float scores[KEYS / 2];
  const float scale = params.scale_log2;
  // Hides what a row does not see.
  auto mask = [&](int step, float hidden) {
    if ((step + 1) * KEYS <= least_seen) return;
#pragma unroll
    for (int j = 0; j < KEYS / 2; j++)
      if (step * KEYS + j / 4 * 8 + lane % 4 * 2 + (j & 1) >= seen[j >> 1 & 1]) scores[j] = hidden;
  };

  // Finite, so that differences are numbers where nothing is seen.
  float most[2] = {-1e30f, -1e30f}, sums[2] = {0.f, 0.f};
#pragma unroll 1
  for (int step = 0; step < keys.lse_steps; step++) {
    multiply(keys, step, matrix, scores);
    mask(step, NEG_INF);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float greatest = most[r];
#pragma unroll
      for (int j = 2 * r; j < KEYS / 2; j += 4) greatest = fmaxf(greatest, fmaxf(scores[j], scores[j + 1]));
      const float base = greatest * scale;
      // Of the difference: a product that is contracted with `base`, rounded as it is, leaves 1e22 of -1e30.
      sums[r] *= exp2_approx((most[r] - greatest) * scale);
      most[r] = greatest;
#pragma unroll
      for (int j = 2 * r; j < KEYS / 2; j += 4)
        sums[r] += exp2_approx(fmaf(scores[j], scale, -base)) + exp2_approx(fmaf(scores[j + 1], scale, -base));
    }
  }
  float lse[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float greatest = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
    float sum = sums[r] * exp2_approx((most[r] - greatest) * scale);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    lse[r] = greatest * scale + log2_approx(sum);
    const int row = warp * 16 + lane / 4 + 8 * r;
    if (params.has_lse && exists[r]) {
      const i64 at = (i64)batch * params.rows + (i64)(first_tile + row / GROUP_ROWS) * params.query_tile;
      lse[r] = params.lse[at * params.heads_kv * GROUP + head * GROUP + row % GROUP_ROWS] * LOG2_E;
    }
    if (!exists[r]) lse[r] = -NEG_INF;
  }

  Best best[WARP_LISTS];
#pragma unroll
  for (int t = 0; t < WARP_LISTS; t++) best[t].start();
  const bool owns = warp % PARTS == 0;
  const int first_list = PARTS > 1 ? warp / PARTS : warp * WARP_LISTS;
  float* const ring = (float*)(memory + RING_OFFSET) + warp * WARP_LISTS * RING;
  auto meet = [&]() {
    if (PARTS > 1) named_sync(1 + warp / 4, 128);
    else __syncwarp();
  };
#pragma unroll 1
  for (int step = 0; step < score_steps; step++) {
    multiply(keys, keys.lse_steps + step, matrix, scores);
#pragma unroll
    for (int j = 0; j < KEYS / 2; j++) scores[j] = exp2_approx(fmaf(scores[j], scale, -lse[j >> 1 & 1]));
    mask(step, 0.f);
    meet();
    int column = 0;
#pragma unroll
    for (int e = 0; e < EXCHANGES; e++) column += lane & 4 << e ? 16 >> (EXCHANGES - e) : 0;
#pragma unroll
    for (int r = 0; r < (GROUP_ROWS >= 16 ? 1 : 2); r++) {
      float values[16];
#pragma unroll
      for (int c = 0; c < 16; c++) {
        const int j = c / 2 * 4 + (c & 1);
        values[c] = GROUP_ROWS >= 16 ? scores[j] + scores[j + 2] : scores[j + 2 * r];
      }
      sum_heads(values, lane);
      float* const to = ring + (GROUP_ROWS >= 16 ? 0 : (lane / 4 + 8 * r) / GROUP_ROWS) * RING;
#pragma unroll
      for (int i = 0; i < LEFT; i += 2) {
        const int x = step * KEYS + (column + i) / 2 * 8 + lane % 4 * 2;
        *(float2*)(to + (x & RING - 1)) = make_float2(values[i], values[i + 1]);
      }
    }
    meet();
    if (!owns) continue;
    const int from = step * KEYS / RATIO, end = (step + 1) * KEYS / RATIO;
#pragma unroll
    for (int t = 0; t < WARP_LISTS; t++) {
      const List list = own[first_list + t];
      if (!is_scored(list)) continue;
#pragma unroll 1
      for (int first = from; first < end && first < list.middle; first += 32) {
        const int block = first + lane;
        const bool is_candidate = block < end && block >= list.front && block < list.middle;
        best[t].take(is_candidate ? score_of(ring + t * RING, block) : -2.f, first, list.free, lane);
      }
    }
  }

  if (!owns) return;
#pragma unroll
  for (int t = 0; t < WARP_LISTS; t++) {
    const int tile = first_tile + first_list + t;
    if (tile >= params.tiles) continue;
    const List list = own[first_list + t];
    int* const to = params.lists + ((i64)(batch * params.tiles + tile) * params.heads_kv + head) * params.entries;
    const bool scored = is_scored(list);
    const int taken = candidates(list) < list.free ? candidates(list) : list.free;
    if (scored) {
      int rank = list.front;
      for (int other = 0; other < taken; other++) rank += __shfl_sync(~0u, best[t].block, other) < best[t].block;
      if (lane < taken) to[rank] = best[t].block;
    }
    const int behind = list.front + taken;
    for (int entry = lane; entry < params.entries; entry += 32) {
      if (entry < list.front || (entry < behind && !scored)) to[entry] = entry;
      if (entry >= behind) {
        const int block = list.middle + entry - behind;
        to[entry] = block < list.end && block < params.blocks ? block : -1;
      }
    }
  }
}
