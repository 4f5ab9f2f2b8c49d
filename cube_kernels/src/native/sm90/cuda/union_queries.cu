// The gradient of queries that have lists of their own, see union.cuh. A block is taken by halves: registers are short.

struct Params {
  void* dq;
  const u16 *query, *key, *value, *dout;
  const float4* statistics;      // [batch, heads, queries], see query_statistics.cuh
  Union of;
  i64 query_strides[3], key_strides[3], value_strides[3], dout_strides[3];  // elements: batch, token, head
  float scale, scale_log2;       // scale * log2(e)
};

constexpr int PART = KEYS >= 32 ? KEYS / 2 : KEYS;

DEVICE const u16* vector(const u16* of, const i64 (&strides)[3], int batch, int token, int head) {
  return of + batch * strides[0] + token * strides[1] + head * strides[2];
}

struct Consumer {
  const Params& params;
  u32 shared;
  Barriers barriers;
  int warp, lane;

  DEVICE float4 statistics_of(int batch, const int (&at)[PLACE]) const {
    return params.statistics[((i64)batch * params.of.heads + at[1]) * params.of.queries + at[0]];
  }

  // A row again that became infinite or NaN, as union_forward.cu has it.
  DEVICE void repair(const Rows& rows, const Items& items, const int (&at)[PLACE]) {
    const Union& of = params.of;
    const u32 bit = 1u << at[0] % QUERIES;
    const int seen = keys_before(at[0], of.keys, of.origin, of.step);
    const float4 statistics = statistics_of(rows.batch, at);
    Row row, sum = {};
    load_row(row, vector(params.query, params.query_strides, rows.batch, at[0], at[1]), vector(params.dout, params.dout_strides, rows.batch, at[0], at[1]), lane);
#pragma unroll 1
    for (int i = 0; i < items.count; i++) {
      const u64 item = items.at[i];
      if (!((u32)(item >> 32) & bit)) continue;
      const int begin = (int)(u32)item * KEYS, end = seen < begin + KEYS ? seen : begin + KEYS;
#pragma unroll 1
      for (int n = begin; n < end; n++)
        see(sum, row, vector(params.key, params.key_strides, rows.batch, n, rows.head_kv), vector(params.value, params.value_strides, rows.batch, n, rows.head_kv),
            statistics.x, statistics.y, params.scale_log2, 0.f, lane);
    }
    u16* dq = (u16*)params.dq + (((i64)rows.batch * of.queries + at[0]) * of.heads + at[1]) * DIM;
#pragma unroll
    for (int i = 0; i < (DIM + 31) / 32; i++)
      if (i * 32 + lane < DIM) dq[i * 32 + lane] = (u16)pack(sum.values[i] * params.scale, 0.f);
  }

  // A tile whose first block is number `step` of all; gives that of the next.
  DEVICE int consume(int tile, int step) {
    const Items items(params.of, tile);
    const Rows rows(params.of, tile, warp, lane);
    u32 query[DIM / 4], dout[DIM_V / 4];
    float lse[2], delta[2], dq[DIM / 2];
    load_rows(vector(params.query, params.query_strides, rows.batch, rows.at[0][0], rows.at[0][1]),
              vector(params.query, params.query_strides, rows.batch, rows.at[1][0], rows.at[1][1]), rows.exists, lane, query);
    load_rows(vector(params.dout, params.dout_strides, rows.batch, rows.at[0][0], rows.at[0][1]),
              vector(params.dout, params.dout_strides, rows.batch, rows.at[1][0], rows.at[1][1]), rows.exists, lane, dout);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float4 statistics = rows.exists[r] ? statistics_of(rows.batch, rows.at[r]) : make_float4(0.f, 0.f, 0.f, 0.f);
      lse[r] = statistics.x;
      delta[r] = statistics.y;
    }
    clear(dq);
#pragma unroll 1
    for (int i = 0; i < items.count; i++, step++) {
      const int stage = stage_of(step);
      barrier_wait(barriers.full(stage), parity_of(step));
      const u64 item = ((const u64*)(memory + ITEM_OFFSET))[stage];
      const u32 bits = uniform((int)(item >> 32));
      if (bits & rows.mine) {
        const u32 key = shared + stage * STAGE, value = key + K_BYTES;
#pragma unroll 1
        for (int first = 0; first < KEYS; first += PART) {
          float s[PART / 2], dp[PART / 2];
          u32 slopes[PART / 4];
          clear(s);
          clear(dp);
#pragma unroll
          for (int k = 0; k < DIM / 16; k++) multiply_rows<KEYS>(s, query + 4 * k, key, first, k, lane);
#pragma unroll
          for (int k = 0; k < DIM_V / 16; k++) multiply_rows<KEYS>(dp, dout + 4 * k, value, first, k, lane);
          hide(s, rows, item, first, lane);
#pragma unroll
          for (int n = 0; n < PART / 2; n++) {
            const int r = n >> 1 & 1;
            s[n] = exp2_approx(fmaf(s[n], params.scale_log2, -lse[r])) * (dp[n] - delta[r]);
          }
          pack_left(s, slopes);
          multiply_columns<KEYS>(dq, slopes, key, first, lane);
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.empty(stage));
    }
    bool broken[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const i64 row = ((i64)rows.batch * params.of.queries + rows.at[r][0]) * params.of.heads + rows.at[r][1];
      const float poison = store_row((u16*)params.dq + row * DIM, dq, r, params.scale, rows.exists[r], lane);
      broken[r] = rows.exists[r] && poison != 0.f;
    }
    for_each_broken(broken, rows.at, [&](const int (&at)[PLACE]) { repair(rows, items, at); });
    return step;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_backward(const __grid_constant__ TensorMap map_key, const __grid_constant__ TensorMap map_value, const __grid_constant__ Params params) {
  run<Consumer>(params, map_key, map_value);
}
