// What the kernels know that go from block to block, where each entry of a list has a result of its own, and those that put these together.

struct Visits {
  int queries, keys, heads_kv;
  Divisor entries;               // of a list
  int blocks;
  int first_pair, pairs;         // of a sample and a key head, of the launch
  int origin, step;              // query i stands at i + origin, key j at j * step
  float scale, scale_log2;       // scale * log2(e)

  DEVICE int query_of(int entry) const { return divide(entry, entries); }
  DEVICE int seen_by(int query) const { return keys_before(query, keys, origin, step); }
};

// Strides are in elements: batch, token, head.
DEVICE const u16* vector(const u16* of, const i64 (&strides)[3], int batch, int token, int head) {
  return of + batch * strides[0] + token * strides[1] + head * strides[2];
}
