// Adds up the parts of key blocks, in their order, and computes again what became infinite or NaN: a warp for each key. The fast path also
// multiplies pairs that do not see each other, with weight zero.
//
// Compile-time parameters: those of union_keys.cu, and VISITS: inverse lists are those of entries of single queries, see
// visits_backward.cu, and slots those of a launch.

struct Params {
  void *dk, *dv;
  const u16 *query, *key, *value, *dout;
  const float4* statistics;      // [batch, heads, queries], see delta.cu
  const int* slots;              // see union_parts.cu
  const float* sums;             // [slots, KEYS, DIM + DIM_V]
  Inverse inverse;
  i64 query_strides[3], key_strides[3], value_strides[3], dout_strides[3];  // elements: batch, token, head
  int queries, keys, heads, heads_kv;
  int query_block;               // queries of a list; with VISITS its entries
  int origin, step;              // query i stands at i + origin, key j at j * step
  float scale, scale_log2;       // scale * log2(e)
  int first_pair;                // of the launch, with VISITS
};

DEVICE const u16* vector(const u16* of, const i64 (&strides)[3], int batch, int token, int head) {
  return of + batch * strides[0] + token * strides[1] + head * strides[2];
}

// Writes a vector, and says whether it is finite; or reads what is there.
template <int N> DEVICE bool store(u16* to, const float (&values)[N], int dim, float factor, bool writes, int lane) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < N; i++)
    if (i * 32 + lane < dim) {
      if (writes) to[i * 32 + lane] = (u16)pack(values[i] * factor, 0.f);
      finite = finite && unpack(to[i * 32 + lane]) * 0.f == 0.f;
    }
  return __all_sync(~0u, finite);
}

extern "C" __global__ void __launch_bounds__(128, 4) attention_sums(const __grid_constant__ Params params) {
  const Inverse& of = params.inverse;
  const int lane = threadIdx.x % 32;
  const int fours = (params.keys + 3) / 4, token = blockIdx.x % fours * 4 + threadIdx.x / 32, block = token / KEYS;
  const int own = blockIdx.x / fours, pair = VISITS ? params.first_pair + own : own;
  if (token >= params.keys) return;
  const int batch = pair / params.heads_kv, head_kv = pair % params.heads_kv;
  const Visitors visitors(of, pair, block);
  const int* const slots = params.slots + (i64)pair * (of.blocks + 1) + block;
  const int parts = slots[1] - slots[0];
  const i64 place = ((i64)batch * params.keys + token) * params.heads_kv + head_kv;
  u16* const dk = (u16*)params.dk + place * DIM;
  u16* const dv = (u16*)params.dv + place * DIM_V;
  Row sum = {};
  if (parts > 0) {
    const i64 first = (i64)own * of.slots + slots[0];
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
      const float* from = params.sums + ((first + part) * KEYS + token % KEYS) * (DIM + DIM_V);
#pragma unroll
      for (int i = 0; i < (DIM + 31) / 32; i++) sum.values[i] += i * 32 + lane < DIM ? from[i * 32 + lane] : 0.f;
#pragma unroll
      for (int i = 0; i < (DIM_V + 31) / 32; i++) sum.values_v[i] += i * 32 + lane < DIM_V ? from[DIM + i * 32 + lane] : 0.f;
    }
  }
  const bool finite = store(dk, sum.values, DIM, params.scale, parts > 0, lane);
  if (store(dv, sum.values_v, DIM_V, 1.f, parts > 0, lane) && finite) return;
  Row row;
  sum = {};
  load_row(row, vector(params.key, params.key_strides, batch, token, head_kv), vector(params.value, params.value_strides, batch, token, head_kv), lane);
#pragma unroll 1
  for (int i = 0; i < visitors.count; i++)
#pragma unroll 1
    for (int t = 0; t < (VISITS ? 1 : params.query_block); t++) {
      const int query = VISITS ? visitors.at[i] / params.query_block : visitors.at[i] * params.query_block + t;
      if (query >= params.queries || token >= keys_before(query, params.keys, params.origin, params.step)) continue;
#pragma unroll 1
      for (int h = 0; h < GROUP; h++) {
        const int head = head_kv * GROUP + h;
        const float4 statistics = params.statistics[((i64)batch * params.heads + head) * params.queries + query];
        see(sum, row, vector(params.query, params.query_strides, batch, query, head), vector(params.dout, params.dout_strides, batch, query, head),
            statistics.x, statistics.y, params.scale_log2, 0.f, lane);
      }
    }
  store(dk, sum.values, DIM, params.scale, true, lane);
  store(dv, sum.values_v, DIM_V, 1.f, true, lane);
}
