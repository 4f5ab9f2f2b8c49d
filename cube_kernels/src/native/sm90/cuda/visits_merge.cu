// Puts together what visits_forward.cu has computed for the entries of each list, see visits_lists.cuh. A row that is infinite or NaN is
// computed again, a key after the other: the fast path also multiplied what the row does not see, with weight zero.
//
// Compile-time parameters: BF16, DIM, DIM_V, GROUP, KEYS, CAUSAL.

struct Params {
  void* out;
  float* lse;
  const u16 *query, *key, *value;
  const u16* partial;            // [pairs of the launch, queries, entries, GROUP, DIM_V]
  const float* partial_lse;      // the same without vectors, to the base of two
  const int* lists;              // [batch, queries, heads_kv, entries]
  i64 query_strides[3], key_strides[3], value_strides[3];
  Visits of;
};

// The row again, of what the list names.
DEVICE void repair(const Params& params, const Query& query, int lane) {
  const int batch = query.batch, head_kv = query.head_kv;
  const u16* from = vector(params.query, params.query_strides, batch, query.token, query.head);
  float q[(DIM + 31) / 32];
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++) q[i] = i * 32 + lane < DIM ? unpack(from[i * 32 + lane]) : 0.f;
  Accumulator sum = {NEG_INF, 0.f, {}};
  query.list.for_each_key([&](int n) {
    see(sum, q, vector(params.key, params.key_strides, batch, n, head_kv), vector(params.value, params.value_strides, batch, n, head_kv),
        params.of.scale_log2, 0.f, lane);
  });
  const float inverse = 1.f / sum.sum;
  u16* out = (u16*)params.out + query.row * DIM_V;
#pragma unroll
  for (int i = 0; i < (DIM_V + 31) / 32; i++)
    if (i * 32 + lane < DIM_V) out[i * 32 + lane] = (u16)pack(sum.out[i] * inverse, 0.f);
  if (lane == 0) params.lse[query.row] = (sum.max + log2f(sum.sum)) * LN_2;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 8) attention_merge(const __grid_constant__ Params params) {
  const int lane = threadIdx.x % 32, column = lane % 16 * 8;
  const Query query(params.of, params.lists);
  if (!query.exists) return;
  float most = NEG_INF;
  bool is_blind = true;
#pragma unroll 1
  for (int base = 0; base < query.list.entries; base += 32) {
    const int entry = base + lane;
    const bool exists = query.list.block(entry) >= 0;
    if (exists) most = fmaxf(most, params.partial_lse[query.result(entry)]);
    is_blind = is_blind && !__any_sync(~0u, exists);
  }
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
  float out[8] = {}, sum = 0.f;
  const auto weigh = [&](int entry) {
    const float weight = exp2_approx(params.partial_lse[query.result(entry)] - most);
    sum += weight;
    return weight;
  };
  add_results<DIM_V>(out, query, params.partial, column, weigh, [](u32 bits) { return unpack((u16)bits); });
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
  const float poison = join_halves(out, is_blind ? 0.f : 1.f / sum);
  const float lse = (most + log2_approx(sum)) * LN_2;
  const bool broken = __any_sync(~0u, column < DIM_V && poison != 0.f) || !(fabsf(lse) < -NEG_INF);
  if (broken && !is_blind) {
    repair(params, query, lane);
    return;
  }
  if (lane < 16 && column < DIM_V) *(uint4*)((u16*)params.out + query.row * DIM_V + column) = pack_eight(out);
  if (lane == 0) params.lse[query.row] = is_blind ? NEG_INF : lse;
}
