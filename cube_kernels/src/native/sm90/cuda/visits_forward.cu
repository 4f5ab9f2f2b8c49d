// Attention forward of blocks with the rows that list them, where heads that share a list are so few that a block is worth more to the
// rows of all queries that list it than to those of one. A CTA has a block, or a part of the entries that name it, see union_parts.cuh. Its
// warpgroups gather the rows of such entries, the heads of TILE_QUERIES of them at a time, and multiply them with wgmma: each entry has a
// result of its own, as if its block were all that its query lists, which visits_merge.cu puts together.
//
// Compile-time parameters: BF16, DIM, DIM_V, GROUP, KEYS (64), CAUSAL, PART_ENTRIES. Shared memory: the block of keys and values, and two
// tiles of rows for each warpgroup.

constexpr int CTAS = 2;
constexpr int TILE = chunks_of(DIM > DIM_V ? DIM : DIM_V) * ROWS * SWIZZLE, ROWS_OFFSET = K_BYTES + V_BYTES;

struct Params {
  u16* partial;                  // [pairs of the launch, listed, GROUP, DIM_V]
  float* lse;                    // the same without vectors, to the base of two
  const u16 *query, *key, *value;
  const int4* parts;             // see union_parts.cu
  Inverse inverse;               // of entries
  i64 query_strides[3], key_strides[3], value_strides[3];
  Visits of;
};

DEVICE u64 matrix_of(u32 address, u32 leading_bytes) {
  return (u64)(1 << 30 | 8 * SWIZZLE >> 4) << 32 | leading_bytes >> 4 << 16 | (address & 0x3FFFF) >> 4;
}

// A warpgroup.
struct Consumer {
  const Params& params;
  const Work& work;
  u32 shared, rows;              // addresses of the block and of two tiles
  int thread, lane;
  int next[2];                   // entries of the rows that the thread loads of the tile behind the one on its way

  DEVICE void look(int tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) next[r] = work.find(tile, opaque(thread) / 4 + 32 * r);
  }

  // Begins to copy what was looked for: a quarter of each of two rows.
  DEVICE void gather(u32 to) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = thread / 4 + 32 * r;
      const bool exists = next[r] >= 0;
      const int token = exists ? params.of.query_of(next[r]) : 0;
      const u16* from = vector(params.query, params.query_strides, work.batch, token, work.head_kv * GROUP + row % GROUP);
#pragma unroll
      for (int i = 0; i < DIM / 8; i += 4) {
        const int column = i + thread % 4;
        if (column < DIM / 8) copy_or_zero(piece<ROWS>(to, row, column), from + 8 * column, exists);
      }
    }
  }

  DEVICE void consume(int tile, u32 query) {
    const u32 results = query - shared;
    float scores[KEYS / 2], out[DIM_V / 2];
    u32 weights[KEYS / 4];
    int entry[2];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
      wgmma_scores(scores, matrix_of(query + k / 4 * ROWS * SWIZZLE + k % 4 * 32, 16), matrix_of(shared + k / 4 * KEYS * SWIZZLE + k % 4 * 32, 16), k > 0);
    wgmma_commit();
    int limit[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      entry[r] = work.find(tile, thread / 32 * 16 + lane / 4 + 8 * r);
      limit[r] = work.limit(params.of, entry[r]);
    }
    const bool hides = __any_sync(~0u, limit[0] < KEYS || limit[1] < KEYS);
    wgmma_wait<0>();
    pin(scores);
    if (hides) {
#pragma unroll
      for (int j = 0; j < KEYS / 2; j++)
        if (j / 4 * 8 + lane % 4 * 2 + (j & 1) >= limit[j >> 1 & 1]) scores[j] = NEG_INF;
    }
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float most = scores[2 * r];
#pragma unroll
      for (int j = 2 * r; j < KEYS / 2; j += 4) most = fmaxf(most, fmaxf(scores[j], scores[j + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float base = most * params.of.scale_log2;
      float sum = 0.f;
#pragma unroll
      for (int j = 2 * r; j < KEYS / 2; j += 4) {
        scores[j] = exp2_approx(fmaf(scores[j], params.of.scale_log2, -base));
        scores[j + 1] = exp2_approx(fmaf(scores[j + 1], params.of.scale_log2, -base));
        sum += scores[j] + scores[j + 1];
      }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factor[r] = 1.f / sum;
      if (lane % 4 == 0 && entry[r] >= 0) params.lse[place(entry[r], r)] = base + log2_approx(sum);
    }
    pack_left(scores, weights);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
      wgmma_values(out, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3], matrix_of(shared + K_BYTES + k * 16 * SWIZZLE, KEYS * SWIZZLE), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(out);
    // Through the rows' place, of which a warp has its sixteen, to whole vectors in memory.
    named_sync(1 + threadIdx.x / 128, 128);
    const int row = thread / 32 * 16 + lane / 4;
    const u32 to = results + row * SWIZZLE + (row % 8 << 4) + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < DIM_V / 8; j++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        *(u32*)(memory + (to ^ j % 8 << 4) + (j / 8 * ROWS + 8 * r) * SWIZZLE) = pack(out[4 * j + 2 * r] * factor[r], out[4 * j + 2 * r + 1] * factor[r]);
    __syncwarp();
    constexpr int PIECES = DIM_V / 8, TOGETHER = PIECES > 8 ? 16 : 8;  // of a vector, and lanes that write one
    const int column = lane % TOGETHER;
#pragma unroll
    for (int i = 0; i < TOGETHER / 2; i++) {
      const int other = lane / TOGETHER + 32 / TOGETHER * i, first = opaque(thread / 32 * 16);
      const i64 at = __shfl_sync(~0u, entry[i / (TOGETHER / 4)], other % 8 * 4);
      if (at < 0 || column >= PIECES) continue;
      const uint4 some = *(const uint4*)(memory + results + (column / 8 * ROWS + first + other) * SWIZZLE + ((column % 8 ^ other % 8) << 4));
      // Rows of queries are to stay in the cache, and these are not.
      __stcs((uint4*)(params.partial + ((at + before()) * GROUP + (first + other) % GROUP) * DIM_V + 8 * column), some);
    }
  }

  // The number of a result.
  DEVICE i64 place(int entry, int r) const { return (before() + entry) * GROUP + (thread / 32 * 16 + lane / 4 + 8 * r) % GROUP; }
  // Entries of pairs before the own one.
  DEVICE i64 before() const { return (i64)work.own * params.inverse.listed; }
};

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) attention_forward(const __grid_constant__ Params params) {
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const Work work(params.of, params.parts, params.inverse);
  if (work.block < 0 || work.count == 0) return;
  const int warpgroup = uniform(threadIdx.x / 128), thread = threadIdx.x % 128;
  const u32 rows = shared + ROWS_OFFSET + warpgroup * 2 * TILE;
  const int tiles = (work.count + TILE_QUERIES - 1) / TILE_QUERIES;
  Consumer consumer = {params, work, shared, rows, thread, thread % 32};
  work.load(params.of.keys, params.key, params.key_strides, DIM, shared);
  work.load(params.of.keys, params.value, params.value_strides, DIM_V, shared + K_BYTES);
  consumer.look(warpgroup);
  consumer.gather(rows);
  consumer.look(warpgroup + WARPGROUPS);
  wait_for_copies();
  shared_proxy_fence();
  __syncthreads();
  int number = 0;
#pragma unroll 1
  for (int tile = warpgroup; tile < tiles; tile += WARPGROUPS, number ^= 1) {
    // All of the warpgroup have copied this tile, and multiplied the one whose place the next one takes.
    wait_for_copies();
    shared_proxy_fence();
    named_sync(1 + warpgroup, 128);
    consumer.gather(rows + (number ^ 1) * TILE);
    consumer.look(tile + 2 * WARPGROUPS);
    consumer.consume(tile, rows + number * TILE);
  }
  wait_for_copies();
}
