// Gradients of keys and values of listed blocks, where queries have lists of their own. A CTA has a block, or a part of the queries that
// list one, see union_parts.cuh. Its loaders gather rows, the heads of those queries, ROWS at a time; teams of warps, each warp with
// sixteen keys, take such steps in turn, and add up their sums in the end, in the order of teams. Nothing is summed in memory by chance.
//
//   S^T = K Q^T,  P^T = exp2(scale_log2 S^T - lse),  dV += P^T dO,  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),  dK += dS^T Q
//
// Compile-time parameters: BF16, DIM, DIM_V, GROUP, KEYS, STAGES, CAUSAL, PART_ENTRIES. Shared memory: the block of keys and values, and
// STAGES steps of queries, their gradients, statistics and limits; in the end, the sums of a team.

constexpr int WARPS = 8, LOADERS = 128, THREADS = 32 * WARPS + LOADERS;
constexpr int LOADER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
constexpr int TEAM = KEYS / 16, TEAMS = WARPS / TEAM;
constexpr int ROWS = 32;         // of a step

constexpr int K_BYTES = chunks_of(DIM) * KEYS * SWIZZLE, V_BYTES = chunks_of(DIM_V) * KEYS * SWIZZLE;
constexpr int Q_BYTES = chunks_of(DIM) * ROWS * SWIZZLE, DOUT_BYTES = chunks_of(DIM_V) * ROWS * SWIZZLE;
constexpr int STAGE = Q_BYTES + DOUT_BYTES + ROWS * 16;
constexpr int RING = K_BYTES + V_BYTES, LIMITS = RING + STAGES * STAGE, BARRIER_OFFSET = LIMITS + STAGES * ROWS * 4;
static_assert(STAGES * STAGE >= KEYS * (DIM + DIM_V) * 4, "a team's sums have room where steps were");

struct Params {
  void *dk, *dv;
  const u16 *query, *key, *value, *dout;
  const float4* statistics;      // [batch, heads, queries], see query_statistics.cuh
  const int4* parts;             // see union_parts.cu
  float* sums;                   // [slots, KEYS, DIM + DIM_V]
  Inverse inverse;
  i64 query_strides[3], key_strides[3], value_strides[3], dout_strides[3];  // elements: batch, token, head
  int queries, keys, heads, heads_kv, query_block;
  int origin, step;              // query i stands at i + origin, key j at j * step
  float scale, scale_log2;       // scale * log2(e)
  int padding;
};

extern __shared__ __align__(1024) u8 memory[];

struct Barriers {
  u32 base;
  DEVICE u32 full(int stage) const { return base + 8 * stage; }
  DEVICE u32 empty(int stage) const { return base + 8 * (STAGES + stage); }
};
DEVICE int stage_of(int step) { return step % STAGES; }
DEVICE u32 parity_of(int step) { return step / STAGES & 1; }

DEVICE const u16* vector(const u16* of, const i64 (&strides)[3], int batch, int token, int head) {
  return of + batch * strides[0] + token * strides[1] + head * strides[2];
}

// What a CTA has.
struct Work {
  int pair, batch, head_kv, block, count, slot;
  const u32* visitors;           // of the part
  DEVICE Work(const Params& params) {
    pair = blockIdx.x / params.inverse.parts;
    batch = pair / params.heads_kv;
    head_kv = pair % params.heads_kv;
    const int4 part = params.parts[blockIdx.x];
    block = part.x;
    slot = part.w < 0 ? -1 : pair * params.inverse.slots + part.w;
    count = part.z - part.y;
    visitors = block < 0 ? nullptr : Visitors(params.inverse, pair, block).at + part.y;
  }
  // Rows, ROWS of each step: heads of tokens of entries.
  DEVICE int rows(const Params& params) const { return count * params.query_block * GROUP; }
};

// A thread of the loaders: a quarter of a row of each step.
DEVICE void load(const Params& params, const Work& work, u32 shared, const Barriers& barriers, int thread) {
  const int row = thread / 4, lane = thread % 4, rows = work.rows(params), steps = (rows + ROWS - 1) / ROWS;
  int number = row;
  // Two steps ahead: each is a way to memory and back.
  auto visitor = [&](int number) { return number < rows ? work.visitors[number / GROUP / params.query_block] : 0u; };
  u32 next = visitor(number), after = visitor(number + ROWS);
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    const int stage = stage_of(step), member = number / GROUP, head = work.head_kv * GROUP + number % GROUP;
    const int token = (int)next * params.query_block + member % params.query_block;
    const bool exists = number < rows && token < params.queries;
    number += ROWS;
    next = after;
    after = visitor(number + ROWS);
    const int at = exists ? token : 0;
    const u16* query = vector(params.query, params.query_strides, work.batch, at, head);
    const u16* dout = vector(params.dout, params.dout_strides, work.batch, at, head);
    const u32 to = shared + RING + stage * STAGE;
    barrier_wait(barriers.empty(stage), parity_of(step) ^ 1);
#pragma unroll
    for (int i = 0; i < DIM / 8; i += 4)
      if (i + lane < DIM / 8) copy_or_zero(piece<ROWS>(to, row, i + lane), query + 8 * (i + lane), exists);
#pragma unroll
    for (int i = 0; i < DIM_V / 8; i += 4)
      if (i + lane < DIM_V / 8) copy_or_zero(piece<ROWS>(to + Q_BYTES, row, i + lane), dout + 8 * (i + lane), exists);
    if (lane == 0) {
      copy_or_zero(to + Q_BYTES + DOUT_BYTES + 16 * row, params.statistics + ((i64)work.batch * params.heads + head) * params.queries + at, exists);
      const int seen = exists ? keys_before(at, params.keys, params.origin, params.step) : 0;
      ((int*)(memory + LIMITS))[stage * ROWS + row] = seen - work.block * KEYS;
    }
    arrive_with_copies(barriers.full(stage));
    barrier_arrive(barriers.full(stage));
  }
  wait_for_copies();
}

struct Consumer {
  const Params& params;
  const Work& work;
  u32 shared;
  Barriers barriers;
  int warp, lane;
  float dk[DIM / 2], dv[DIM_V / 2];

  DEVICE void consume(int step) {
    const int stage = stage_of(step), own = warp % TEAM * 16;
    const u32 key = shared, value = shared + K_BYTES, query = shared + RING + stage * STAGE, dout = query + Q_BYTES;
    const float4* const statistics = (const float4*)(memory + RING + stage * STAGE + Q_BYTES + DOUT_BYTES);
    const int* const limits = (const int*)(memory + LIMITS) + stage * ROWS;
    float s[ROWS / 2], dp[ROWS / 2];
    u32 left[ROWS / 4];
    barrier_wait(barriers.full(stage), parity_of(step));
    clear(s);
    clear(dp);
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
      u32 a[4];
      load_left<KEYS>(a, key, own, k, lane);
      multiply_rows<ROWS>(s, a, query, 0, k, lane);
    }
#pragma unroll
    for (int k = 0; k < DIM_V / 16; k++) {
      u32 a[4];
      load_left<KEYS>(a, value, own, k, lane);
      multiply_rows<ROWS>(dp, a, dout, 0, k, lane);
    }
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int column = 8 * j + lane % 4 * 2 + e, limit = limits[column];
        const float lse = statistics[column].x, delta = statistics[column].y;
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float& score = s[4 * j + 2 * r + e];
          float& slope = dp[4 * j + 2 * r + e];
          score = own + lane / 4 + 8 * r < limit ? exp2_approx(fmaf(score, params.scale_log2, -lse)) : 0.f;
          slope = score * (slope - delta);
        }
      }
    pack_left(s, left);
    multiply_columns<ROWS>(dv, left, dout, 0, lane);
    pack_left(dp, left);
    multiply_columns<ROWS>(dk, left, query, 0, lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(barriers.empty(stage));
  }

  // Hands sums to the team that adds up, or takes them: a lane's are side by side with those of its neighbours.
  template <bool TAKES, int N> DEVICE void pass(float (&sums)[N], int first) {
    float* const at = (float*)(memory + RING) + (warp % TEAM * (DIM + DIM_V) / 2 + first) * 32 + lane;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (TAKES) sums[i] += at[32 * i];
      else at[32 * i] = sums[i];
    }
  }

  DEVICE void finish() {
    const int team = warp / TEAM;
#pragma unroll 1
    for (int t = 1; t < TEAMS; t++) {
      named_sync(1, 32 * WARPS);
      if (team == t) pass<false>(dk, 0), pass<false>(dv, DIM / 2);
      named_sync(1, 32 * WARPS);
      if (team == 0) pass<true>(dk, 0), pass<true>(dv, DIM / 2);
    }
    if (team > 0) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int own = warp * 16 + lane / 4 + 8 * r, token = work.block * KEYS + own;
      if (work.slot < 0) {
        const i64 row = ((i64)work.batch * params.keys + token) * params.heads_kv + work.head_kv;
        store_row((u16*)params.dk + row * DIM, dk, r, params.scale, token < params.keys, lane);
        store_row((u16*)params.dv + row * DIM_V, dv, r, 1.f, token < params.keys, lane);
      } else {
        float* const to = params.sums + ((i64)work.slot * KEYS + own) * (DIM + DIM_V);
        store_row(to, dk, r, 1.f, true, lane);
        store_row(to + DIM, dv, r, 1.f, true, lane);
      }
    }
  }
};

// The block of keys or values.
DEVICE void load_block(const Params& params, const Work& work, const u16* of, const i64 (&strides)[3], int dim, u32 to) {
  for (int i = threadIdx.x; i < KEYS * dim / 8; i += THREADS) {
    const int row = i / (dim / 8), column = i % (dim / 8), token = work.block * KEYS + row;
    const bool exists = token < params.keys;
    copy_or_zero(piece<KEYS>(to, row, column), vector(of, strides, work.batch, exists ? token : 0, work.head_kv) + 8 * column, exists);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_backward(const __grid_constant__ Params params) {
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const Barriers barriers = {shared + BARRIER_OFFSET};
  const u32 begun = shared + BARRIER_OFFSET + 16 * STAGES;
  const Work work(params);
  if (work.block < 0) return;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(barriers.full(s), 2 * LOADERS);
      barrier_init(barriers.empty(s), TEAM);
    }
    barrier_init(begun, THREADS);
    barrier_init_fence();
  }
  __syncthreads();
  load_block(params, work, params.key, params.key_strides, DIM, shared);
  load_block(params, work, params.value, params.value_strides, DIM_V, shared + K_BYTES);
  arrive_with_copies(begun);
  const int warp = threadIdx.x / 32;
  if (warp >= WARPS) {
    give_registers<LOADER_REGISTERS>();
    load(params, work, shared, barriers, threadIdx.x - 32 * WARPS);
    return;
  }
  take_registers<CONSUMER_REGISTERS>();
  Consumer consumer = {params, work, shared, barriers, warp, (int)threadIdx.x % 32};
  clear(consumer.dk);
  clear(consumer.dv);
  barrier_wait(begun, 0);
  const int steps = (work.rows(params) + ROWS - 1) / ROWS;
#pragma unroll 1
  for (int step = warp / TEAM; step < steps; step += TEAMS) consumer.consume(step);
  consumer.finish();
}
