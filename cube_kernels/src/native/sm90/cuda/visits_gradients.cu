// Adds up the rows that visits_backward.cu has computed for the entries of each list: a warp for a query of a head, half of it for an entry.
// A gradient that is infinite or NaN is computed again, a key after the other: the fast path also multiplied what the row does not see, with
// weight zero.
//
// Compile-time parameters: BF16, DIM, DIM_V, GROUP, KEYS, CAUSAL.

struct Params {
  u16* dq;
  const u16 *query, *key, *value, *dout;
  const float4* statistics;      // [batch, heads, queries], see delta.cu
  const u16* partial;            // [pairs of the launch, queries, entries, GROUP, DIM]: steps of a row's scale, and 32768
  const float* scales;           // the same without vectors
  const int* lists;              // [batch, queries, heads_kv, entries]
  i64 query_strides[3], key_strides[3], value_strides[3], dout_strides[3];  // elements: batch, token, head
  int queries, keys, heads_kv, entries, blocks;
  int first_pair, pairs;         // of the launch
  int origin, step;              // query i stands at i + origin, key j at j * step
  float scale, scale_log2;       // scale * log2(e)
  int padding;
};

constexpr int WARPS = 4;
constexpr int TOGETHER = 8;        // rows on their way to a lane

DEVICE const u16* vector(const u16* of, const i64 (&strides)[3], int batch, int token, int head) {
  return of + batch * strides[0] + token * strides[1] + head * strides[2];
}

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
DEVICE void repair(const Params& params, const List& list, int batch, int token, int head_kv, int head, i64 number, int lane) {
  const float4 statistics = params.statistics[((i64)batch * params.heads_kv * GROUP + head) * params.queries + token];
  Row row, sum = {};
  load_row(row, vector(params.query, params.query_strides, batch, token, head), vector(params.dout, params.dout_strides, batch, token, head), lane);
#pragma unroll 1
  for (int entry = 0; entry < list.entries; entry++) {
    const int block = list.block(entry);
    if (block < 0) continue;
    const int begin = block * KEYS, end = list.seen < begin + KEYS ? list.seen : begin + KEYS;
#pragma unroll 1
    for (int n = begin; n < end; n++)
      see(sum, row, vector(params.key, params.key_strides, batch, n, head_kv), vector(params.value, params.value_strides, batch, n, head_kv),
          statistics.x, statistics.y, params.scale_log2, 0.f, lane);
  }
  u16* const dq = params.dq + number * DIM;
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++)
    if (i * 32 + lane < DIM) dq[i * 32 + lane] = (u16)pack(sum.values[i] * params.scale, 0.f);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 8) attention_gradients(const __grid_constant__ Params params) {
  constexpr float ZERO = 8388608.f + 32768.f;
  const int lane = threadIdx.x % 32, half = lane / 16, column = lane % 16 * 8;
  const i64 number = (i64)blockIdx.x * WARPS + threadIdx.x / 32, list_number = number / GROUP;
  const int member = (int)(number % GROUP), own = (int)(list_number / params.queries), token = (int)(list_number % params.queries);
  if (own >= params.pairs) return;
  const int pair = params.first_pair + own, batch = pair / params.heads_kv, head_kv = pair % params.heads_kv, head = head_kv * GROUP + member;
  const i64 row = ((i64)batch * params.queries + token) * (params.heads_kv * GROUP) + head;
  const List list = {params.lists + (((i64)batch * params.queries + token) * params.heads_kv + head_kv) * params.entries, params.entries, params.blocks,
                     keys_before(token, params.keys, params.origin, params.step)};
  const i64 first = list_number * params.entries * GROUP + member;
  float sum[8] = {};
#pragma unroll 1
  for (int base = 0; base < params.entries; base += 32) {
    const int entry = base + lane;
    const bool exists = list.block(entry) >= 0;
    const float scale = exists ? params.scales[first + (i64)entry * GROUP] : 0.f;
    const u32 there = __ballot_sync(~0u, exists);
    const int count = params.entries - base < 32 ? params.entries - base : 32;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += 2 * TOGETHER) {
      uint4 words[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) {
        const int from = begin + 2 * i + half;
        words[i] = make_uint4(0, 0, 0, 0);
        if (there >> from & 1 && column < DIM) words[i] = *(const uint4*)(params.partial + (first + (i64)(base + from) * GROUP) * DIM + column);
      }
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) {
        const float factor = __shfl_sync(~0u, scale, begin + 2 * i + half);
        const u32 pairs[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
        // The bits of 2^23 and a number below 65536.
#pragma unroll
        for (int j = 0; j < 4; j++) {
          sum[2 * j] = fmaf(factor, __uint_as_float(0x4B000000 | (pairs[j] & 0xFFFF)) - ZERO, sum[2 * j]);
          sum[2 * j + 1] = fmaf(factor, __uint_as_float(0x4B000000 | pairs[j] >> 16) - ZERO, sum[2 * j + 1]);
        }
      }
    }
  }
  float poison = 0.f;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    sum[j] = (sum[j] + __shfl_xor_sync(~0u, sum[j], 16)) * params.scale;
    poison = fmaf(sum[j], 0.f, poison);
  }
  if (__any_sync(~0u, column < DIM && poison != 0.f)) {
    repair(params, list, batch, token, head_kv, head, row, lane);
    return;
  }
  if (half == 0 && column < DIM)
    *(uint4*)(params.dq + row * DIM + column) = make_uint4(pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7]));
}
