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
  // Ahead of the use of a sequence's maps.
  DEVICE void acquire(const Tile& tile) const {
#pragma unroll 1
    for (int i = 0; i < Maps::COUNT; i++) tma_acquire(sequences[tile.sequence].maps + i);
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
  DEVICE void acquire(const Tile&) const {}
};
#endif

// The scale of the scores where they are weighed: of a packed batch what was read `once`, since it lies in memory.
DEVICE float scale_of(const Params& params, float once) { return PACKED ? once : params.scale_log2; }
