// What a launch computes: one problem or, with PACKED, the sequences of a packed batch. Each of these has parameters and tensor maps of its own, in
// global memory, and tiles that follow those of the sequence before it. Of a plain launch the compiler sees through all of this.
// Where a tile's sequence lies is read again at each use if the tile is volatile, and computed again if not: registers are short.

#if PACKED
struct __align__(128) Sequence {
  TensorMap maps[Maps::COUNT];
  Params params;
};

struct Launch {
  const Sequence* sequences;
  const int* first;              // number of the first tile of each
  int count, all;                // sequences, and their tiles
  int is_ahead, unused;          // whether maps are acquired ahead of all tiles

  DEVICE int tiles() const { return all; }
  // The sequence of a tile, whose number becomes that among the sequence's own.
  DEVICE void find(int& number, Tile& tile) const {
    tile.sequence = find_sequence(first, count, number);
    tile.where = sequences + tile.sequence;
  }
  DEVICE const Params& any() const { return sequences->params; }
  DEVICE const Params& params(const volatile Tile& tile) const { return tile.where->params; }
  DEVICE const Params& params(const Tile& tile) const { return sequences[tile.sequence].params; }
  DEVICE Maps maps(const volatile Tile& tile) const { return Maps::at(tile.where->maps); }
  DEVICE Maps maps(const Tile& tile) const { return Maps::at(sequences[tile.sequence].maps); }
  // Maps that the host wrote are acquired once by a CTA before it uses them: what the TMA unit knows of that memory may be of another launch. It then
  // forgets them, for the CTAs beside it as well, which wait when they are at their tiles. So they are acquired ahead of all tiles, by all warps, unless a
  // CTA has few tiles of many sequences; then at the first tile of a sequence, since the numbers of a CTA's tiles grow.
  DEVICE void acquire_maps(int sequence) const {
#pragma unroll 1
    for (int i = 0; i < Maps::COUNT; i++)
      if (Maps::is_used(i)) tma_acquire(sequences[sequence].maps + i);
  }
  // By all threads, ahead of a barrier. `before` is what comes before the first tile.
  DEVICE void start(Tile& before) const {
    if (threadIdx.x == 0) before.sequence = -1;
    if (!is_ahead || threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) acquire_maps(i);
  }
  // Ahead of the use of a tile's maps. `before` is the tile before it.
  DEVICE void acquire(const Tile& tile, const Tile& before) const {
    if (!is_ahead && tile.sequence != before.sequence) acquire_maps(tile.sequence);
  }
};
#else
struct Launch {
  const Params& only;
  const Maps& its;

#if LISTED
  DEVICE int tiles() const { return only.listed.tiles; }
#else
  DEVICE int tiles() const { return only.space.tiles; }
#endif
  DEVICE void find(int&, Tile&) const {}
  DEVICE const Params& any() const { return only; }
  DEVICE const Params& params(const volatile Tile&) const { return only; }
  DEVICE const Maps& maps(const volatile Tile&) const { return its; }
  DEVICE void start(Tile&) const {}
  DEVICE void acquire(const Tile&, const Tile&) const {}
};
#endif

// The scale of the scores where they are weighed: of a packed batch what was read `once`, since it lies in memory.
DEVICE float scale_of(const Params& params, float once) { return PACKED ? once : params.scale_log2; }
