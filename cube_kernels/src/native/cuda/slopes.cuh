// Slopes, dS, of a head that a kernel for keys leaves in memory for one for queries.
//
// A block of 64 keys and 64 queries, boxes of both, lies as the keys' warpgroup holds it, which is how a product takes its transpose out of
// shared memory: for each eight keys of a warp's sixteen and eight queries 128 bytes, a row of 16 for each key. Of a warp, such pieces follow
// each other by the queries, and of the same queries by the keys.
//
// Boxes of either side lie at multiples of their extents, so that both kernels find the same ones. In one axis, blocks follow each other by
// keys and then queries, and of a causal axis there are none that nobody sees. In several, those of a box of queries follow each other, in a
// ring along each axis: what it sees is a range of boxes of keys, not longer than the ring.

struct Slopes {
  u32* blocks;                   // [heads of the launch, blocks of a head]
  int first_head;                // (sample, query head) pairs ahead of the launch's
  int first_tile;                // tiles of CTAs ahead of them
  int of_head;                   // blocks of a head
  int width, tail;               // in one axis, see native/slopes.rs
  int keys[3];                   // in several: boxes of a ring,
  int pitch[3];                  // and blocks from a box of queries to the next
  int padding;
};

constexpr int SLOPES_BLOCK = 64 * 64 * 2;  // bytes
constexpr int SLOPES_PIECE = 128;          // of 8 keys and 8 queries

// Where keys lie among those of a box of queries: in one axis at their number, in several at a place of the ring.
DEVICE void place_of_keys(const Slopes& slopes, const int (&key)[3], int (&place)[3]) {
#pragma unroll
  for (int a = FIRST_AXIS; a < 3; a++) place[a] = RANK == 1 ? key[a] : key[a] % slopes.keys[a];
}
// The block of the first place for a (sample, query head) pair and a box of queries.
DEVICE int first_block(const Slopes& slopes, int head, const int (&query)[3]) {
  const int block = (head - slopes.first_head) * slopes.of_head;
  if constexpr (RANK == 1) return block + query[2];
  int queries = 0;
#pragma unroll
  for (int a = FIRST_AXIS; a < 3; a++) queries += query[a] * slopes.pitch[a];
  return block + queries;
}
// From there to that of another place.
DEVICE int blocks_ahead(const Slopes& slopes, const int (&place)[3]) {
  if constexpr (RANK == 1) {
    const int last = max_(0, place[2] - slopes.tail);
    return place[2] * slopes.width - last * (last - 1) / 2 - (is_causal(2) ? place[2] : 0);
  }
  int number = 0;
#pragma unroll
  for (int a = FIRST_AXIS; a < 3; a++) number = number * slopes.keys[a] + place[a];
  return number;
}
DEVICE int block_of_slopes(const Slopes& slopes, int head, const int (&key)[3], const int (&query)[3]) {
  int place[3];
  place_of_keys(slopes, key, place);
  return first_block(slopes, head, query) + blocks_ahead(slopes, place);
}

// The number of a warpgroup's box of rows along each axis, and of the first box of columns of its CTA.
DEVICE void row_number(const Tile& tile, int warpgroup, int (&number)[3]) {
#pragma unroll
  for (int a = 0; a < 3; a++) number[a] = tile.row[a] / row_extent(a) + (a == STACK ? warpgroup : 0);
}
DEVICE void column_number(const Tile& tile, int (&number)[3]) {
#pragma unroll
  for (int a = 0; a < 3; a++) number[a] = tile.column[a] / column_extent(a);
}
