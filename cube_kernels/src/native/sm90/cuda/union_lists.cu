// From lists to what `union.cuh` walks over. A CTA has the lists of QUERIES neighbouring queries and a key head, and joins them: an item
// is a block with a bit for each query that lists it. A query that lists a block twice has a second item, which it shares with others
// that do. Items come in the order of places in lists, of each place one query after the other: neighbouring items belong to different
// warps, which work on them at once.
//
// Compile-time parameters: QUERIES, KEYS (of a block), CAUSAL. Shared memory: four bytes for each entry, and for each of four warps.

struct Params {
  u64* items;                    // [tiles, QUERIES * entries]: block, and bits of queries in the upper half
  int* counts;                   // items of each tile
  const int* lists;              // [batch, query_blocks, heads, entries]
  int queries, keys, blocks;     // blocks of keys
  int query_block, query_blocks; // tokens that share a list, and lists of a head
  int heads, entries;            // heads that have lists
  int tiles;                     // of a head
  int origin, step;              // query i stands at i + origin, key j at j * step
};

extern __shared__ __align__(1024) u8 memory[];

extern "C" __global__ void __launch_bounds__(128) attention_union(const __grid_constant__ Params params) {
  int* const listed = (int*)memory;
  const int entries = params.entries, all = QUERIES * entries;
  int* const found = listed + all;
  const int tile = blockIdx.x, pair = tile / params.tiles, first = tile % params.tiles * QUERIES;
  const int batch = pair / params.heads, head = pair % params.heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < all; i += 128) {
    const int token = first + i / entries;
    int block = -1;
    if (token < params.queries) {
      const i64 list = ((i64)batch * params.query_blocks + token / params.query_block) * params.heads + head;
      block = params.lists[list * entries + i % entries];
      const bool exists = (u32)block < (u32)params.blocks;
      if (!exists || block * KEYS >= keys_before(token, params.keys, params.origin, params.step)) block = -1;
    }
    listed[i] = block;
  }
  __syncthreads();
  u64* const items = params.items + (i64)tile * all;
  int total = 0;
#pragma unroll 1
  for (int base = 0; base < all; base += 128) {
    const int i = base + threadIdx.x, query = i % QUERIES, place = i / QUERIES;
    const int block = i < all ? listed[query * entries + place] : -1;
    u32 bits = 0;
    if (block >= 0) {
      int before = 0;
#pragma unroll 1
      for (int e = 0; e < place; e++) before += listed[query * entries + e] == block;
#pragma unroll 1
      for (int other = 0; other < QUERIES; other++) {
        int count = 0;
#pragma unroll 4
        for (int e = 0; e < entries; e++) count += listed[other * entries + e] == block;
        bits |= (u32)(count > before) << other;
      }
    }
    // The first query of those that list it writes the item.
    const bool writes = block >= 0 && (bits & ((1u << query) - 1)) == 0;
    const u32 lanes = __ballot_sync(~0u, writes);
    if (lane == 0) found[warp] = __popc(lanes);
    __syncthreads();
    int at = total + __popc(lanes & ((1u << lane) - 1));
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const int more = found[w];
      at += w < warp ? more : 0;
      total += more;
    }
    if (writes) items[at] = (u64)bits << 32 | (u32)block;
    __syncthreads();
  }
  if (threadIdx.x == 0) params.counts[tile] = total;
}
