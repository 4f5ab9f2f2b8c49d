// Gradients of blocks with the rows that list them, where heads that share a list are few: five products for all three gradients. A CTA has
// a block, or a part of the entries that name it, see union_parts.cuh. Its warpgroups gather the rows of such entries in turn, the heads of
// TILE_QUERIES of them at a time, and multiply them with wgmma. Gradients of keys and values stay in registers until the last tile, and
// those of two warpgroups are added up in their order. What an entry adds to the gradient of its query is written as a row of its own, which
// visits_gradients.cu adds up in the order of lists: nothing is summed in memory by chance.
//
//   S^T = K Q^T,  P^T = exp2(scale_log2 S^T - lse),  dV += P^T dO,  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),  dK += dS^T Q,  dQ = dS K
//
// Weights and slopes are in registers as they are multiplied with rows; slopes go through shared memory to be multiplied with keys, as their
// transpose. Rows of results have 16 bits an element, of a scale of their own: the largest is 32767 steps, so that their rounding is nothing
// beside that of the sum, whose terms may be larger than it.
//
// Compile-time parameters: BF16, DIM, DIM_V, GROUP, KEYS (64), CAUSAL, PART_ENTRIES. Shared memory: the block of keys and values; for each
// warpgroup two tiles of rows and their statistics, slopes, and a tile of results, and where rows come from and go to; in the end sums, where
// rows were. Registers: 128 of sums, 64 of results, 32 of weights and slopes, at head_dim 128: one CTA of two warpgroups a multiprocessor.

constexpr int PLACES = 4;        // tiles whose places and limits are known: three, in a ring
constexpr int Q_BYTES = chunks_of(DIM) * ROWS * SWIZZLE, TILE = Q_BYTES + chunks_of(DIM_V) * ROWS * SWIZZLE;
constexpr int ROWS_OFFSET = K_BYTES + V_BYTES, SLOPES_OFFSET = ROWS_OFFSET + 2 * WARPGROUPS * TILE, SLOPES = KEYS * SWIZZLE;
constexpr int RESULTS_OFFSET = SLOPES_OFFSET + WARPGROUPS * SLOPES;
constexpr int STATISTICS_OFFSET = RESULTS_OFFSET + WARPGROUPS * Q_BYTES, SOURCES_OFFSET = STATISTICS_OFFSET + 2 * WARPGROUPS * ROWS * 8;
constexpr int PLACES_OFFSET = SOURCES_OFFSET + WARPGROUPS * ROWS * 24, LIMITS_OFFSET = PLACES_OFFSET + PLACES * WARPGROUPS * ROWS * 8;
static_assert(2 * WARPGROUPS * TILE >= KEYS * (DIM + DIM_V) * 4, "a warpgroup's sums have room where rows were");

struct Params {
  void *dk, *dv;
  u16* partial;                  // [pairs of the launch, listed, GROUP, DIM]: steps of a row's scale, and 32768; and a row for what is nobody's
  float* scales;                 // the same without vectors
  const u16 *query, *key, *value, *dout;
  const float4* statistics;      // [batch, heads, queries], see query_statistics.cuh
  const int4* parts;             // see union_parts.cu
  float* sums;                   // [slots of the launch, KEYS, DIM + DIM_V]
  Inverse inverse;               // of entries
  i64 query_strides[3], key_strides[3], value_strides[3], dout_strides[3];
  Visits of;
};

// Descriptors, by addresses in pieces of 16 bytes: of vectors as rows, and of as many as a tile has as columns.
DEVICE u32 pieces(u32 address) { return (address & 0x3FFFF) >> 4; }
DEVICE u64 rows_of(u32 at) { return (u64)(1 << 30 | 8 * SWIZZLE >> 4) << 32 | (at + (1 << 16)); }
DEVICE u64 columns_of(u32 at) { return (u64)(1 << 30 | 8 * SWIZZLE >> 4) << 32 | (at + (ROWS * SWIZZLE >> 4 << 16)); }

// Where a row comes from.
struct Vectors { const u16 *query, *dout; };

// Begins to copy a quarter of a vector to a tile: every fourth piece of 16 bytes.
template <int N> DEVICE void copy_quarter(u32 to, const u16* from, int row, int quarter) {
  const u32 even = to + row * SWIZZLE + ((quarter ^ row % 8) << 4), odd = even ^ 64;
#pragma unroll
  for (int i = 0; i < N / 8; i += 4)
    if (i + quarter < N / 8) copy_or_zero((i % 8 ? odd : even) + i / 8 * ROWS * SWIZZLE, from + 8 * i, true);
}

// A warpgroup. Tiles have numbers among its own.
struct Consumer {
  const Params& params;
  const Work& work;
  u32 shared;
  int warpgroup, thread, lane;
  float dk[DIM / 2], dv[DIM_V / 2];

  DEVICE u32 tile_of(int number) const { return ROWS_OFFSET + (2 * warpgroup + number % 2) * TILE; }
  // Of rows: logsumexps and deltas; their places among results, and so many keys of the block they see.
  DEVICE float* statistics_of(int number) const { return (float*)(memory + STATISTICS_OFFSET) + (2 * warpgroup + number % 2) * 2 * ROWS; }
  DEVICE i64* places_of(int number) const { return (i64*)(memory + PLACES_OFFSET) + (warpgroup * PLACES + number % PLACES) * ROWS; }
  DEVICE int* limits_of(int number) const { return (int*)(memory + LIMITS_OFFSET) + (warpgroup * PLACES + number % PLACES) * ROWS; }
  // Of the tile that is gathered next.
  DEVICE Vectors* vectors() const { return (Vectors*)(memory + SOURCES_OFFSET) + warpgroup * ROWS; }
  DEVICE const float4** statistics() const { return (const float4**)(memory + SOURCES_OFFSET + WARPGROUPS * ROWS * 16) + warpgroup * ROWS; }

  // The entry of the row of a tile that a thread describes, a row for each thread of two warps.
  DEVICE int look(int number) const { return thread < ROWS ? work.find(WARPGROUPS * number + warpgroup, thread) : -1; }

  // Says where the rows of a tile come from, and where they go to. Rows that are nobody's are the first query's, with weights of zero.
  DEVICE void describe(int number, int entry) {
    if (thread >= ROWS) return;
    const int row = opaque(thread), member = row % GROUP, head = work.head_kv * GROUP + member;
    const bool exists = entry >= 0;
    const int token = exists ? params.of.query_of(entry) : 0;
    const i64 listed = params.inverse.listed;
    vectors()[row] = {vector(params.query, params.query_strides, work.batch, token, head), vector(params.dout, params.dout_strides, work.batch, token, head)};
    statistics()[row] = exists ? params.statistics + ((i64)work.batch * params.of.heads_kv * GROUP + head) * params.of.queries + token : nullptr;
    places_of(number)[row] = exists ? (work.own * listed + entry) * GROUP + member : params.of.pairs * listed * GROUP;
    limits_of(number)[row] = work.limit(params.of, entry);
  }

  // Begins to copy the rows of a tile that is described: a quarter of each of two rows, and the statistics of one.
  DEVICE void gather(int number) {
    const u32 to = shared + tile_of(number);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = thread / 4 + 32 * r, quarter = thread % 4;
      const Vectors from = vectors()[row];
      copy_quarter<DIM>(to, from.query + 8 * quarter, row, quarter);
      copy_quarter<DIM_V>(to + Q_BYTES, from.dout + 8 * quarter, row, quarter);
    }
    if (thread < ROWS) {
      const float4* const from = statistics()[thread];
      float* const to = statistics_of(number) + thread;
      if (from) {
        copy_word<4>(address_of_shared(to), &from->x);
        copy_word<4>(address_of_shared(to + ROWS), &from->y);
      } else {
        to[0] = -NEG_INF;
        to[ROWS] = 0.f;
      }
    }
  }

  DEVICE void consume(int number) {
    const u32 tile = tile_of(number), slopes_at = SLOPES_OFFSET + warpgroup * SLOPES;
    const u32 key = pieces(shared), value = key + (K_BYTES >> 4), query = pieces(shared + tile), dout = query + (Q_BYTES >> 4);
    const int own = thread / 32 * 16 + lane / 4, first = lane % 4 * 2;  // of 64 keys or rows: a lane's is this one, or eight further down
    const float* const statistics = statistics_of(number) + first;
    const int* const limits = limits_of(number);
    float s[ROWS / 2], dp[ROWS / 2];
    u32 weights[ROWS / 4], slopes[ROWS / 4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
      const int at = k / 4 * ROWS * SWIZZLE + k % 4 * 32 >> 4;
      wgmma_scores(s, rows_of(key + at), rows_of(query + at), k > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int k = 0; k < DIM_V / 16; k++) {
      const int at = k / 4 * ROWS * SWIZZLE + k % 4 * 32 >> 4;
      wgmma_scores(dp, rows_of(value + at), rows_of(dout + at), k > 0);
    }
    wgmma_commit();
    const bool hides = __any_sync(~0u, limits[lane] < KEYS || limits[lane + 32] < KEYS);
    wgmma_wait<1>();
    pin(s);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
      const float2 lse = *(const float2*)(statistics + 8 * j);
#pragma unroll
      for (int n = 0; n < 4; n++) s[4 * j + n] = exp2_approx(fmaf(s[4 * j + n], params.of.scale_log2, n & 1 ? -lse.y : -lse.x));
    }
    if (hides) {
#pragma unroll
      for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int limit = limits[8 * j + first + e];
#pragma unroll
          for (int r = 0; r < 2; r++)
            if (own + 8 * r >= limit) s[4 * j + 2 * r + e] = 0.f;
        }
    }
    pack_left(s, weights);
    wgmma_wait<0>();
    pin(dp);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++)
      wgmma_second(dv, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3], columns_of(dout + (k * 16 * SWIZZLE >> 4)));
    wgmma_commit();
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
      const float2 delta = *(const float2*)(statistics + ROWS + 8 * j);
#pragma unroll
      for (int n = 0; n < 4; n++) dp[4 * j + n] = s[4 * j + n] * (dp[4 * j + n] - (n & 1 ? delta.y : delta.x));
    }
    pack_left(dp, slopes);
    // As dS^T, a row of 128 bytes for each key.
    const u32 to = slopes_at + own * SWIZZLE + (own % 8 << 4) + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) *(u32*)(memory + (to ^ j << 4) + 8 * r * SWIZZLE) = slopes[2 * j + r];
    shared_proxy_fence();
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++)
      wgmma_first(dk, slopes[4 * k], slopes[4 * k + 1], slopes[4 * k + 2], slopes[4 * k + 3], columns_of(query + (k * 16 * SWIZZLE >> 4)));
    wgmma_commit();
    named_sync(1 + warpgroup, 128);
    float dq[DIM / 2];
    const u32 transposed = pieces(shared + slopes_at);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) wgmma_queries(dq, columns_of(transposed + (k * 16 * SWIZZLE >> 4)), columns_of(key + (k * 16 * SWIZZLE >> 4)), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(dv);
    pin(dk);
    pin(dq);
    hand_over(dq, number);
  }

  // The rows of a tile, through shared memory, of which a warp has its sixteen, to whole vectors in memory.
  DEVICE void hand_over(const float (&dq)[DIM / 2], int number) {
    constexpr float MOST = 32767.f, ZERO = 8388608.f + 32768.f;  // whose sum with a step has its bits as the lowest 16
    const u32 results = RESULTS_OFFSET + warpgroup * Q_BYTES + thread / 32 * 16 * SWIZZLE;
    const i64* const places = places_of(number) + thread / 32 * 16;
    const int row = lane / 4;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float most = 0.f;
#pragma unroll
      for (int j = 2 * r; j < DIM / 2; j += 4) most = max2(most, max2(fabsf(dq[j]), fabsf(dq[j + 1])));
      most = max2(most, __shfl_xor_sync(~0u, most, 1));
      most = max2(most, __shfl_xor_sync(~0u, most, 2));
      // A row of less is zero: its scale would be. One that is infinite or NaN, or nearly so, has NaN as its scale.
      factor[r] = most > 1e-33f ? MOST / most : 0.f;
      if (lane % 4 == 0) params.scales[places[row + 8 * r]] = most < 1e37f ? most * (1.f / MOST) : __int_as_float(0x7fc00000);
    }
    const u32 to = results + row * SWIZZLE + (row << 4) + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < DIM / 8; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const u32 low = __float_as_uint(fmaf(dq[4 * j + 2 * r], factor[r], ZERO)), high = __float_as_uint(fmaf(dq[4 * j + 2 * r + 1], factor[r], ZERO));
        *(u32*)(memory + (to ^ j % 8 << 4) + (j / 8 * ROWS + 8 * r) * SWIZZLE) = __byte_perm(low, high, 0x5410);
      }
    __syncwarp();
    constexpr int PIECES = DIM / 8, TOGETHER = PIECES > 8 ? 16 : 8;  // of a vector, and lanes that write one
    const int column = lane % TOGETHER, other = lane / TOGETHER;
    if (column >= PIECES) return;
    const u32 from = results + (column / 8 * ROWS + other) * SWIZZLE + ((column % 8 ^ other) << 4);
    u16* const partial = params.partial + 8 * column;
#pragma unroll
    for (int i = 0; i < TOGETHER / 2; i++) {
      const int on = 32 / TOGETHER * i;
      // Rows of inputs are to stay in the cache, and these are not.
      __stcs((uint4*)(partial + places[other + on] * DIM), *(const uint4*)(memory + (from ^ on % 8 << 4) + on * SWIZZLE));
    }
  }

  // Hands sums to the warpgroup that adds up, or takes them: a lane's are side by side with those of its neighbours.
  template <bool TAKES, int N> DEVICE void pass(float (&sums)[N], int first) {
    float* const at = (float*)(memory + ROWS_OFFSET) + (thread / 32 * (DIM + DIM_V) / 2 + first) * 32 + lane;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (TAKES) sums[i] += at[32 * i];
      else at[32 * i] = sums[i];
    }
  }

  DEVICE void finish() {
    __syncthreads();
    if (warpgroup > 0) pass<false>(dk, 0), pass<false>(dv, DIM / 2);
    __syncthreads();
    if (warpgroup > 0) return;
    pass<true>(dk, 0), pass<true>(dv, DIM / 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int own = thread / 32 * 16 + lane / 4 + 8 * r, token = work.block * KEYS + own;
      if (work.slot < 0) {
        const i64 row = ((i64)work.batch * params.of.keys + token) * params.of.heads_kv + work.head_kv;
        store_row((u16*)params.dk + row * DIM, dk, r, params.of.scale, token < params.of.keys, lane);
        store_row((u16*)params.dv + row * DIM_V, dv, r, 1.f, token < params.of.keys, lane);
      } else {
        float* const to = params.sums + ((i64)work.slot * KEYS + own) * (DIM + DIM_V);
        store_row(to, dk, r, 1.f, true, lane);
        store_row(to + DIM, dv, r, 1.f, true, lane);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_backward(const __grid_constant__ Params params) {
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const Work work(params.of, params.parts, params.inverse);
  if (work.block < 0) return;
  const int warpgroup = uniform(threadIdx.x / 128), thread = threadIdx.x % 128;
  const int all = (work.count + TILE_QUERIES - 1) / TILE_QUERIES, tiles = (all + WARPGROUPS - 1 - warpgroup) / WARPGROUPS;
  Consumer consumer = {params, work, shared, warpgroup, thread, thread % 32};
  clear(consumer.dk);
  clear(consumer.dv);
  work.load(params.of.keys, params.key, params.key_strides, DIM, shared);
  work.load(params.of.keys, params.value, params.value_strides, DIM_V, shared + K_BYTES);
  consumer.describe(0, consumer.look(0));
  __syncthreads();
  consumer.gather(0);
  wait_for_copies();
  shared_proxy_fence();
  __syncthreads();
  consumer.describe(1, consumer.look(1));
#pragma unroll 1
  for (int number = 0; number < tiles; number++) {
    // All of the warpgroup have copied this tile, and know the next one, whose place they have multiplied.
    wait_for_copies();
    shared_proxy_fence();
    named_sync(1 + warpgroup, 128);
    consumer.gather(number + 1);
    const int entry = consumer.look(number + 2);
    consumer.consume(number);
    consumer.describe(number + 2, entry);
  }
  wait_for_copies();
  consumer.finish();
}
