// Adds up the rows that visits_backward.cu has computed for the entries of each list, see visits_lists.cuh. A gradient that is infinite or
// NaN is computed again, a key after the other: the fast path also multiplied what the row does not see, with weight zero.
//
// Compile-time parameters: BF16, DIM, DIM_V, GROUP, KEYS, CAUSAL.

struct Params {
  u16* dq;
  const u16 *query, *key, *value, *dout;
  const float4* statistics;      // [batch, heads, queries], see query_statistics.cuh
  const u16* partial;            // [pairs of the launch, queries, entries, GROUP, DIM]: steps of a row's scale, and 32768
  const float* scales;           // the same without vectors
  const int* lists;              // [batch, queries, heads_kv, entries]
  i64 query_strides[3], key_strides[3], value_strides[3], dout_strides[3];
  Visits of;
};

// The row again, of what the list names.
DEVICE void repair(const Params& params, const Query& query, int lane) {
  const int batch = query.batch, token = query.token, head_kv = query.head_kv, head = query.head;
  const float4 statistics = params.statistics[((i64)batch * params.of.heads_kv * GROUP + head) * params.of.queries + token];
  Row row, sum = {};
  load_row(row, vector(params.query, params.query_strides, batch, token, head), vector(params.dout, params.dout_strides, batch, token, head), lane);
  query.list.for_each_key([&](int n) {
    see(sum, row, vector(params.key, params.key_strides, batch, n, head_kv), vector(params.value, params.value_strides, batch, n, head_kv), statistics.x,
        statistics.y, params.of.scale_log2, 0.f, lane);
  });
  u16* const dq = params.dq + query.row * DIM;
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++)
    if (i * 32 + lane < DIM) dq[i * 32 + lane] = (u16)pack(sum.values[i] * params.of.scale, 0.f);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 8) attention_gradients(const __grid_constant__ Params params) {
  constexpr float ZERO = 8388608.f + 32768.f;
  const int lane = threadIdx.x % 32, column = lane % 16 * 8;
  const Query query(params.of, params.lists);
  if (!query.exists) return;
  float sum[8] = {};
  add_results<DIM>(
      sum, query, params.partial, column, [&](int entry) { return params.scales[query.result(entry)]; },
      // The bits of 2^23 and a number below 65536.
      [](u32 bits) { return __uint_as_float(0x4B000000 | bits) - ZERO; });
  const float poison = join_halves(sum, params.of.scale);
  if (__any_sync(~0u, column < DIM && poison != 0.f)) {
    repair(params, query, lane);
    return;
  }
  if (lane < 16 && column < DIM) *(uint4*)(params.dq + query.row * DIM + column) = pack_eight(sum);
}
