// How key blocks are shared among CTAs: a block that many queries list is cut into parts, whose sums are added up in their order by one
// more kernel. A block that few list is one part, which writes its gradients itself.

struct Inverse {
  const u32* starts;             // [pairs, blocks + 1], see sparse/invert.rs
  const u32* items;              // [pairs, listed]
  int listed;                    // entries of all lists of a pair of a sample and a key head
  int blocks;                    // of keys
  int parts, slots;              // of a pair at most; slots are those of parts that do not write gradients themselves
};

struct Visitors {
  const u32* at;
  int count;
  DEVICE Visitors(const Inverse& of, int pair, int block) {
    const u32* starts = of.starts + (i64)pair * (of.blocks + 1) + block;
    at = of.items + (i64)pair * of.listed + starts[0];
    count = starts[1] - starts[0];
  }
};

// Parts of so many entries.
DEVICE int parts_of(int count) { return count > PART_ENTRIES ? (count + PART_ENTRIES - 1) / PART_ENTRIES : 1; }
