// Slopes, dS, of a head that a kernel for keys leaves in memory for one for queries.
//
// A block of 64 keys and 64 queries lies as the keys' warpgroup holds it, which is how a product takes its transpose out of shared memory:
// for each eight keys of a warp's sixteen and eight queries 128 bytes, a row of 16 for each key. Of a warp, such pieces follow each other by
// the queries, and of the same queries by the keys.

struct Slopes {
  u32* blocks;                   // [heads of the launch, blocks of a head]
  int first_head;                // (sample, query head) pairs ahead of the launch's
  int first_tile;                // tiles of CTAs ahead of them
  int of_head;                   // blocks of a head
  int width, tail;               // see native/slopes.rs
  int padding;
};

constexpr int SLOPES_BLOCK = 64 * 64 * 2;  // bytes
constexpr int SLOPES_PIECE = 128;          // of 8 keys and 8 queries

// The number of the block of a (sample, query head) pair for blocks of keys and of queries.
DEVICE int block_of_slopes(const Slopes& slopes, int head, int key, int query) {
  const int last = max_(0, key - slopes.tail);
  return (head - slopes.first_head) * slopes.of_head + key * slopes.width - last * (last - 1) / 2 + query - (is_causal(2) ? key : 0);
}
