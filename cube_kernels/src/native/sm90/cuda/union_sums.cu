// Adds up the parts of key blocks, in their order, and computes again what became infinite or NaN. The fast path also multiplies
// pairs that do not see each other, with weight zero. A warp has TOGETHER neighboring keys, whose vectors are on their way at once where
// they are only looked at.
//
// Compile-time parameters: those of union_keys.cu, and VISITS: inverse lists are those of entries of single queries, see
// visits_backward.cu, and slots those of a launch.

struct Params {
  void *dk, *dv;
  const u16 *query, *key, *value, *dout;
  const float4* statistics;      // [batch, heads, queries], see query_statistics.cuh
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

constexpr int TOGETHER = 4;
static_assert(KEYS % TOGETHER == 0, "the keys of a warp are of one block");

DEVICE bool is_finite(u16 bits) { return unpack(bits) * 0.f == 0.f; }

// Whether a lane's elements of a vector are finite.
template <int DIM_> DEVICE bool are_finite(const u16* of, int lane) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < (DIM_ + 31) / 32; i++) finite &= i * 32 + lane >= DIM_ || is_finite(of[i * 32 + lane]);
  return finite;
}

// Writes a lane's elements of a vector, and says whether they are finite.
template <int N> DEVICE bool store(u16* to, const float (&values)[N], int dim, float factor, int lane) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < N; i++)
    if (i * 32 + lane < dim) {
      const u16 bits = (u16)pack(values[i] * factor, 0.f);
      to[i * 32 + lane] = bits;
      finite &= is_finite(bits);
    }
  return finite;
}

extern "C" __global__ void __launch_bounds__(128, 4) attention_sums(const __grid_constant__ Params params) {
  const Inverse& of = params.inverse;
  const int lane = threadIdx.x % 32;
  const int steps = (params.keys + 4 * TOGETHER - 1) / (4 * TOGETHER);
  const int first = (blockIdx.x % steps * 4 + threadIdx.x / 32) * TOGETHER, block = first / KEYS;
  const int own = blockIdx.x / steps, pair = VISITS ? params.first_pair + own : own;
  if (first >= params.keys) return;
  const int count = params.keys - first < TOGETHER ? params.keys - first : TOGETHER;
  const int batch = pair / params.heads_kv, head_kv = pair % params.heads_kv;
  const Visitors visitors(of, pair, block);
  const int* const slots = params.slots + (i64)pair * (of.blocks + 1) + block;
  const int parts = slots[1] - slots[0];
  const i64 place = ((i64)batch * params.keys + first) * params.heads_kv + head_kv;
  u16* const dk = (u16*)params.dk + place * DIM;
  u16* const dv = (u16*)params.dv + place * DIM_V;
  u32 again = 0;
  if (parts > 0) {
    const float* from = params.sums + (((i64)own * of.slots + slots[0]) * KEYS + first % KEYS) * (DIM + DIM_V);
    Row sums[TOGETHER] = {};
#pragma unroll 1
    for (int part = 0; part < parts; part++, from += KEYS * (DIM + DIM_V))
#pragma unroll
      for (int t = 0; t < TOGETHER; t++) {
        const float* const key = from + t * (DIM + DIM_V);
#pragma unroll
        for (int i = 0; i < (DIM + 31) / 32; i++) sums[t].values[i] += i * 32 + lane < DIM ? key[i * 32 + lane] : 0.f;
#pragma unroll
        for (int i = 0; i < (DIM_V + 31) / 32; i++) sums[t].values_v[i] += i * 32 + lane < DIM_V ? key[DIM + i * 32 + lane] : 0.f;
      }
#pragma unroll
    for (int t = 0; t < TOGETHER; t++) {
      if (t >= count) continue;
      const i64 at = (i64)t * params.heads_kv;
      const bool finite = store(dk + at * DIM, sums[t].values, DIM, params.scale, lane) & store(dv + at * DIM_V, sums[t].values_v, DIM_V, 1.f, lane);
      again |= __all_sync(~0u, finite) ? 0u : 1u << t;
    }
  } else {
    bool finite[TOGETHER];
#pragma unroll
    for (int t = 0; t < TOGETHER; t++) {
      // The first one's where there is none.
      const i64 at = (i64)(t < count ? t : 0) * params.heads_kv;
      finite[t] = are_finite<DIM>(dk + at * DIM, lane) & are_finite<DIM_V>(dv + at * DIM_V, lane);
    }
#pragma unroll
    for (int t = 0; t < TOGETHER; t++) again |= t >= count || __all_sync(~0u, finite[t]) ? 0u : 1u << t;
  }
#pragma unroll 1
  for (int t = 0; t < count; t++) {
    if (!(again >> t & 1)) continue;
    const int token = first + t;
    Row row, sum = {};
    load_row(row, vector(params.key, params.key_strides, batch, token, head_kv), vector(params.value, params.value_strides, batch, token, head_kv), lane);
#pragma unroll 1
    for (int i = 0; i < visitors.count; i++)
#pragma unroll 1
      for (int q = 0; q < (VISITS ? 1 : params.query_block); q++) {
        const int query = VISITS ? visitors.at[i] / params.query_block : visitors.at[i] * params.query_block + q;
        if (query >= params.queries || token >= keys_before(query, params.keys, params.origin, params.step)) continue;
#pragma unroll 1
        for (int h = 0; h < GROUP; h++) {
          const int head = head_kv * GROUP + h;
          const float4 statistics = params.statistics[((i64)batch * params.heads + head) * params.queries + query];
          see(sum, row, vector(params.query, params.query_strides, batch, query, head), vector(params.dout, params.dout_strides, batch, query, head),
              statistics.x, statistics.y, params.scale_log2, 0.f, lane);
        }
      }
    const i64 at = (i64)t * params.heads_kv;
    store(dk + at * DIM, sum.values, DIM, params.scale, lane);
    store(dv + at * DIM_V, sum.values_v, DIM_V, 1.f, lane);
  }
}
