// Attention forward with logsumexp, of queries that have lists of their own, see union.cuh.

struct Params {
  void* out;
  float* lse;
  const u16 *query, *key, *value;
  Union of;
  i64 query_strides[3], key_strides[3], value_strides[3];  // elements: batch, token, head
  float scale_log2;                                        // scale * log2(e)
  int padding;
};

struct Consumer {
  const Params& params;
  u32 shared;
  Barriers barriers;
  int warp, lane;

  // A row again that cannot be trusted: one that multiplied what it does not see, with weight zero, and that was infinite or NaN.
  DEVICE void repair(const Rows& rows, const Items& items, const int (&at)[PLACE]) {
    const Union& of = params.of;
    const u32 bit = 1u << at[0] % QUERIES;
    const int seen = keys_before(at[0], of.keys, of.origin, of.step);
    const u16* query = params.query + rows.batch * params.query_strides[0] + at[0] * params.query_strides[1] + at[1] * params.query_strides[2];
    float q[(DIM + 31) / 32];
#pragma unroll
    for (int i = 0; i < (DIM + 31) / 32; i++) q[i] = i * 32 + lane < DIM ? unpack(query[i * 32 + lane]) : 0.f;
    Accumulator sum = {NEG_INF, 0.f, {}};
#pragma unroll 1
    for (int i = 0; i < items.count; i++) {
      const u64 item = items.at[i];
      if (!((u32)(item >> 32) & bit)) continue;
      const int begin = (int)(u32)item * KEYS, end = seen < begin + KEYS ? seen : begin + KEYS;
#pragma unroll 1
      for (int n = begin; n < end; n++)
        see(sum, q, params.key + rows.batch * params.key_strides[0] + n * params.key_strides[1] + rows.head_kv * params.key_strides[2],
            params.value + rows.batch * params.value_strides[0] + n * params.value_strides[1] + rows.head_kv * params.value_strides[2],
            params.scale_log2, 0.f, lane);
    }
    const i64 row = ((i64)rows.batch * of.queries + at[0]) * of.heads + at[1];
    const float inverse = 1.f / sum.sum;
    u16* out = (u16*)params.out + row * DIM_V;
#pragma unroll
    for (int i = 0; i < (DIM_V + 31) / 32; i++)
      if (i * 32 + lane < DIM_V) out[i * 32 + lane] = (u16)pack(sum.out[i] * inverse, 0.f);
    if (lane == 0) params.lse[row] = (sum.max + log2f(sum.sum)) * LN_2;
  }

  // A tile whose first block is number `step` of all; gives that of the next.
  DEVICE int consume(int tile, int step) {
    const Union& of = params.of;
    const Items items(of, tile);
    const Rows rows(of, tile, warp, lane);
    u32 query[DIM / 4];
    const u16* at = params.query + rows.batch * params.query_strides[0];
    const i64 token = params.query_strides[1], head = params.query_strides[2];
    load_rows(at + rows.at[0][0] * token + rows.at[0][1] * head, at + rows.at[1][0] * token + rows.at[1][1] * head, rows.exists, lane, query);
    float out[DIM_V / 2], scores[SCORES];
    u32 weights[SCORES / 2];
    clear(out);
    Softmax softmax;
    softmax.start(true, true);
    u32 listed = 0;              // bits of queries that see something
#pragma unroll 1
    for (int i = 0; i < items.count; i++, step++) {
      const int stage = stage_of(step);
      barrier_wait(barriers.full(stage), parity_of(step));
      const u64 item = ((const u64*)(memory + ITEM_OFFSET))[stage];
      const u32 bits = uniform((int)(item >> 32));
      if (bits & rows.mine) {
        const u32 key = shared + stage * STAGE, value = key + K_BYTES;
        listed |= bits;
        clear(scores);
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) multiply_rows<KEYS>(scores, query + 4 * k, key, 0, k, lane);
        hide(scores, rows, item, 0, lane);
        softmax.step(scores, params.scale_log2);
        pack_left(scores, weights);
        if (softmax.overflows(weights)) {
          softmax.raise(scores, out, params.scale_log2);
          pack_left(scores, weights);
        }
        multiply_columns<KEYS>(out, weights, value, 0, lane);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.empty(stage));
    }
    finish(rows, items, softmax, out, listed);
    return step;
  }

  DEVICE void finish(const Rows& rows, const Items& items, Softmax& softmax, float (&out)[DIM_V / 2], u32 listed) {
    softmax.finish();
    bool broken[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const bool exists = rows.exists[r], blind = !(listed & rows.bits[r]);
      const i64 row = ((i64)rows.batch * params.of.queries + rows.at[r][0]) * params.of.heads + rows.at[r][1];
      if (blind) {
#pragma unroll
        for (int j = 0; j < DIM_V / 8; j++) out[4 * j + 2 * r] = out[4 * j + 2 * r + 1] = 0.f;
        softmax.forget(r);
      }
      const float factor = blind ? 0.f : 1.f / softmax.sum[r];
      const float poison = softmax.sum[r] * 0.f + store_row((u16*)params.out + row * DIM_V, out, r, factor, exists, lane);
      if (lane % 4 == 0 && exists) params.lse[row] = softmax.logsumexp(r);
      broken[r] = exists && !blind && !(poison == 0.f && fabsf(softmax.reference[r]) < -NEG_INF);
    }
    for_each_broken(broken, rows.at, [&](const int (&at)[PLACE]) { repair(rows, items, at); });
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_forward(const __grid_constant__ TensorMap map_key, const __grid_constant__ TensorMap map_value, const __grid_constant__ Params params) {
  run<Consumer>(params, map_key, map_value);
}
