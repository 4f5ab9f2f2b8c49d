// Puts together what visits_forward.cu has computed for the entries of each list: a warp for a query of a head, half of it for an entry. A
// row that is infinite or NaN is computed again, a key after the other: the fast path also multiplied what the row does not see, with
// weight zero.
//
// Compile-time parameters: BF16, DIM, DIM_V, GROUP, KEYS, CAUSAL.

struct Params {
  void* out;
  float* lse;
  const u16 *query, *key, *value;
  const u16* partial;            // [pairs of the launch, queries, entries, GROUP, DIM_V]
  const float* partial_lse;      // the same without vectors, to the base of two
  const int* lists;              // [batch, queries, heads_kv, entries]
  i64 query_strides[3], key_strides[3], value_strides[3];  // elements: batch, token, head
  int queries, keys, heads_kv, entries, blocks;
  int first_pair, pairs;         // of the launch
  int origin, step;              // query i stands at i + origin, key j at j * step
  float scale_log2;              // scale * log2(e)
};

constexpr int WARPS = 4;
constexpr int TOGETHER = 8;        // results on their way to a lane

// A list, of which a lane looks at every 32nd entry.
struct List {
  const int* at;
  int entries, blocks, seen;
  // The block of an entry, or -1 where there is none or the query does not see it.
  DEVICE int block(int entry) const {
    const int block = entry < entries ? at[entry] : -1;
    return (u32)block < (u32)blocks && block * KEYS < seen ? block : -1;
  }
};

// The row again, of what the list names.
DEVICE void repair(const Params& params, const List& list, int batch, int token, int head_kv, int head, i64 row, int lane) {
  const u16* query = params.query + batch * params.query_strides[0] + token * params.query_strides[1] + head * params.query_strides[2];
  float q[(DIM + 31) / 32];
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++) q[i] = i * 32 + lane < DIM ? unpack(query[i * 32 + lane]) : 0.f;
  Accumulator sum = {NEG_INF, 0.f, {}};
#pragma unroll 1
  for (int entry = 0; entry < list.entries; entry++) {
    const int block = list.block(entry);
    if (block < 0) continue;
    const int begin = block * KEYS, end = list.seen < begin + KEYS ? list.seen : begin + KEYS;
#pragma unroll 1
    for (int n = begin; n < end; n++)
      see(sum, q, params.key + batch * params.key_strides[0] + n * params.key_strides[1] + head_kv * params.key_strides[2],
          params.value + batch * params.value_strides[0] + n * params.value_strides[1] + head_kv * params.value_strides[2], params.scale_log2, 0.f, lane);
  }
  const float inverse = 1.f / sum.sum;
  u16* out = (u16*)params.out + row * DIM_V;
#pragma unroll
  for (int i = 0; i < (DIM_V + 31) / 32; i++)
    if (i * 32 + lane < DIM_V) out[i * 32 + lane] = (u16)pack(sum.out[i] * inverse, 0.f);
  if (lane == 0) params.lse[row] = (sum.max + log2f(sum.sum)) * LN_2;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 8) attention_merge(const __grid_constant__ Params params) {
  const int lane = threadIdx.x % 32, half = lane / 16, column = lane % 16 * 8;
  const i64 number = (i64)blockIdx.x * WARPS + threadIdx.x / 32, list_number = number / GROUP;
  const int member = (int)(number % GROUP), own = (int)(list_number / params.queries), token = (int)(list_number % params.queries);
  if (own >= params.pairs) return;
  const int pair = params.first_pair + own, batch = pair / params.heads_kv, head_kv = pair % params.heads_kv, head = head_kv * GROUP + member;
  const int heads = params.heads_kv * GROUP;
  const i64 row = ((i64)batch * params.queries + token) * heads + head;
  const List list = {params.lists + (((i64)batch * params.queries + token) * params.heads_kv + head_kv) * params.entries, params.entries, params.blocks,
                     keys_before(token, params.keys, params.origin, params.step)};
  const i64 first = list_number * params.entries * GROUP + member;
  float most = NEG_INF;
  bool is_blind = true;
#pragma unroll 1
  for (int base = 0; base < params.entries; base += 32) {
    const int entry = base + lane;
    const bool exists = list.block(entry) >= 0;
    if (exists) most = fmaxf(most, params.partial_lse[first + (i64)entry * GROUP]);
    is_blind = is_blind && !__any_sync(~0u, exists);
  }
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
  float out[8] = {}, sum = 0.f;
#pragma unroll 1
  for (int base = 0; base < params.entries; base += 32) {
    const int entry = base + lane;
    const bool exists = list.block(entry) >= 0;
    const float weight = exists ? exp2_approx(params.partial_lse[first + (i64)entry * GROUP] - most) : 0.f;
    const u32 there = __ballot_sync(~0u, exists);
    sum += weight;
    const int count = params.entries - base < 32 ? params.entries - base : 32;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += 2 * TOGETHER) {
      uint4 words[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) {
        const int from = begin + 2 * i + half;
        words[i] = make_uint4(0, 0, 0, 0);
        if (there >> from & 1 && column < DIM_V) words[i] = *(const uint4*)(params.partial + (first + (i64)(base + from) * GROUP) * DIM_V + column);
      }
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) {
        const float factor = __shfl_sync(~0u, weight, begin + 2 * i + half);
        const u32 pairs[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
          out[2 * j] = fmaf(factor, unpack((u16)pairs[j]), out[2 * j]);
          out[2 * j + 1] = fmaf(factor, unpack((u16)(pairs[j] >> 16)), out[2 * j + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
  const float factor = is_blind ? 0.f : 1.f / sum;
  float poison = 0.f;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    out[j] = (out[j] + __shfl_xor_sync(~0u, out[j], 16)) * factor;
    poison = fmaf(out[j], 0.f, poison);
  }
  const float lse = (most + log2_approx(sum)) * LN_2;
  const bool broken = __any_sync(~0u, column < DIM_V && poison != 0.f) || !(fabsf(lse) < -NEG_INF);
  if (broken && !is_blind) {
    repair(params, list, batch, token, head_kv, head, row, lane);
    return;
  }
  if (half == 0 && column < DIM_V)
    *(uint4*)((u16*)params.out + row * DIM_V + column) = make_uint4(pack(out[0], out[1]), pack(out[2], out[3]), pack(out[4], out[5]), pack(out[6], out[7]));
  if (lane == 0) params.lse[row] = is_blind ? NEG_INF : lse;
}
