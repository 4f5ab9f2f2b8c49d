// What a CTA has that goes through the entries which name a block, or through a part of them, see union_parts.cuh.

constexpr int WARPGROUPS = 2, THREADS = 128 * WARPGROUPS;
constexpr int ROWS = 64, TILE_QUERIES = ROWS / GROUP;
constexpr int K_BYTES = chunks_of(DIM) * KEYS * SWIZZLE, V_BYTES = chunks_of(DIM_V) * KEYS * SWIZZLE;
static_assert(KEYS == 64, "a block is a tile");

extern __shared__ __align__(1024) u8 memory[];

struct Work {
  int own, batch, head_kv, block, count, slot;  // `own`: the pair's number in the launch
  const u32* visitors;           // of the part
  DEVICE Work(const Visits& of, const int4* parts, const Inverse& inverse) {
    own = blockIdx.x / inverse.parts;
    const int pair = of.first_pair + own;
    batch = pair / of.heads_kv;
    head_kv = pair % of.heads_kv;
    const int4 part = parts[(i64)pair * inverse.parts + blockIdx.x % inverse.parts];
    block = part.x;
    slot = part.w < 0 ? -1 : own * inverse.slots + part.w;
    count = part.z - part.y;
    visitors = block < 0 ? nullptr : Visitors(inverse, pair, block).at + part.y;
  }
  // The entry of a row of a tile, or -1 where it is that of none.
  DEVICE int find(int tile, int row) const {
    const int member = row / GROUP, number = tile * TILE_QUERIES + member;
    return member < TILE_QUERIES && number < count ? (int)visitors[number] : -1;
  }
  // So many keys of the block does the query of an entry see; all of them where there is none.
  DEVICE int limit(const Visits& of, int entry) const { return entry >= 0 ? of.seen_by(of.query_of(entry)) - block * KEYS : KEYS; }
  // Begins to copy the block of keys or values, with all threads.
  DEVICE void load(int keys, const u16* of, const i64 (&strides)[3], int dim, u32 to) const {
    for (int i = threadIdx.x; i < KEYS * dim / 8; i += THREADS) {
      const int row = i / (dim / 8), column = i % (dim / 8), token = block * KEYS + row;
      const bool exists = token < keys;
      copy_or_zero(piece<KEYS>(to, row, column), vector(of, strides, batch, exists ? token : 0, head_kv) + 8 * column, exists);
    }
  }
};
