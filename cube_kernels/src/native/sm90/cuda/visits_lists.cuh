// How results of entries are put together: a warp for a query of a head, half of it for an entry.

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
  // Calls `see` with each of the keys, with all lanes.
  template <class See> DEVICE void for_each_key(See see) const {
#pragma unroll 1
    for (int entry = 0; entry < entries; entry++) {
      const int own = block(entry);
      if (own < 0) continue;
      const int begin = own * KEYS, end = seen < begin + KEYS ? seen : begin + KEYS;
#pragma unroll 1
      for (int n = begin; n < end; n++) see(n);
    }
  }
};

// Of a warp.
struct Query {
  int batch, token, head_kv, head;
  i64 row, first;                // its number among all rows; that of its first result
  List list;
  bool exists;
  DEVICE Query(const Visits& of, const int* lists) {
    const i64 number = (i64)blockIdx.x * WARPS + threadIdx.x / 32, list_number = number / GROUP;
    const int member = (int)(number % GROUP), own = (int)(list_number / of.queries), pair = of.first_pair + own;
    token = (int)(list_number - (i64)own * of.queries);
    exists = own < of.pairs;
    batch = pair / of.heads_kv;
    head_kv = pair % of.heads_kv;
    head = head_kv * GROUP + member;
    row = ((i64)batch * of.queries + token) * (of.heads_kv * GROUP) + head;
    first = list_number * of.entries.value * GROUP + member;
    list = {lists + (((i64)batch * of.queries + token) * of.heads_kv + head_kv) * of.entries.value, (int)of.entries.value, of.blocks, of.seen_by(token)};
  }
  DEVICE i64 result(int entry) const { return first + (i64)entry * GROUP; }
};

// Adds to the eight columns of a lane, from `column`, those of each entry's result of N 16-bit numbers, times the entry's factor: a half of
// the warp adds those of every other entry. `factor_of` gives the factor of the lane's own entry.
template <int N, class FactorOf, class NumberOf>
DEVICE void add_results(float (&sum)[8], const Query& query, const u16* results, int column, FactorOf factor_of, NumberOf number_of) {
  const int lane = threadIdx.x % 32, half = lane / 16;
#pragma unroll 1
  for (int base = 0; base < query.list.entries; base += 32) {
    const int entry = base + lane;
    const bool exists = query.list.block(entry) >= 0;
    const float own = exists ? factor_of(entry) : 0.f;
    const u32 there = __ballot_sync(~0u, exists);
    const int count = query.list.entries - base < 32 ? query.list.entries - base : 32;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += 2 * TOGETHER) {
      uint4 words[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) {
        const int from = begin + 2 * i + half;
        words[i] = make_uint4(0, 0, 0, 0);
        if (there >> from & 1 && column < N) words[i] = *(const uint4*)(results + query.result(base + from) * N + column);
      }
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) {
        const float factor = __shfl_sync(~0u, own, begin + 2 * i + half);
        const u32 pairs[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
          sum[2 * j] = fmaf(factor, number_of(pairs[j] & 0xFFFF), sum[2 * j]);
          sum[2 * j + 1] = fmaf(factor, number_of(pairs[j] >> 16), sum[2 * j + 1]);
        }
      }
    }
  }
}

// The sums of both halves, times a factor. Gives zero, or NaN where one of them is infinite or NaN.
DEVICE float join_halves(float (&sum)[8], float factor) {
  float poison = 0.f;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    sum[j] = (sum[j] + __shfl_xor_sync(~0u, sum[j], 16)) * factor;
    poison = fmaf(sum[j], 0.f, poison);
  }
  return poison;
}

DEVICE uint4 pack_eight(const float (&sum)[8]) {
  return make_uint4(pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7]));
}
