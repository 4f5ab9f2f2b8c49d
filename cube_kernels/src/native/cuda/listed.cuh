// Block-sparse attention (LISTED): what takes the place of windows. A list names the blocks of columns that a block of rows sees; `lists.cu`
// has made of it, ahead of the kernel, its items: the boxes of columns that some of the block's rows see, first those that all of
// them see whole, in steps. So a kernel knows from a tile's start how many steps there are, and from which one on there is something to mask.
//
// A tile is ROW_TILES boxes of rows that share a list: boxes of its block, and of heads. Each of them has a Tile of its own. A box of
// rows has ROW_H heads, one of columns COLUMN_H: the heads of a group fill what few tokens leave of 64.

struct Listed {
  const uint4* table;            // of each list: its first item, its steps, those of them without a mask
  const u64* items;              // see `Item`
  int* taken;                    // tiles that the forward pass has handed out, beyond the first of each CTA
  const int* order;              // with INVERSE: in which blocks of rows, of all pairs, are taken
  int tiles;                     // of CTAs
  int parts;                     // of those, of a list
  int blocks[3];                 // of rows, along each axis
  int extent[3];                 // rows of a block
  int boxes[3];                  // of rows, in a block
  int members;                   // boxes of rows that share a list
  int pairs;                     // lists' heads of a sample, as rows have them
  int heads;                     // of rows, for each of these
  int lists_of_pair;             // with INVERSE: lists of the heads of a group, or one
  int origin[3], step[3];        // query i stands at i + origin, key j at j * step
  int padding;
};

// A box of columns, in 8 bytes.
struct Item {
  int at[3];                     // its first column
  int last[3];                   // of the columns that it has of a block, the last one

  DEVICE Item(u64 word) {
    const u32 low = (u32)word, high = (u32)(word >> 32), end = low >> 26;
    at[2] = low & 0x3FFFFFF;
    at[1] = high & 0xFFFF;
    at[0] = high >> 16;
    last[2] = end % COLUMN_X;
    last[1] = end / COLUMN_X % COLUMN_Y;
    last[0] = end / (COLUMN_X * COLUMN_Y);
  }
};

// The list of a pass over the columns of one head of several.
DEVICE uint4 list_of(const Listed& listed, int list, int pass) {
  if (INVERSE && listed.lists_of_pair > 1) list += pass * listed.blocks[0] * listed.blocks[1] * listed.blocks[2];
  return listed.table[list];
}

// Finds the tiles of a CTA. Parts of a list follow each other, then blocks; of a causal problem the queries that see most come first, and
// of all problems the keys with long lists.
DEVICE void decode_listed(const Space& space, const Listed& listed, int index, Tile* tiles) {
  // The producer has few registers: what is known is written, and read again where it is needed. `column` is nobody's: it has
  // whether there are rows, what is left of the block's number and what is left of the box'.
#pragma unroll 1
  for (int w = 0; w < ROW_TILES; w++) {
    volatile Tile& tile = tiles[w];
    tile.column[0] = index % listed.parts * ROW_TILES + w;
    {
      const int count = listed.blocks[0] * listed.blocks[1] * listed.blocks[2], row = INVERSE ? listed.order[index / listed.parts] : index / listed.parts, pair = row / count, number = row % count;
      const int block = CAUSAL && !INVERSE ? count - 1 - number : number;
      tile.column[1] = block;
      tile.list = pair * listed.lists_of_pair * count + block;
      tile.batch = pair / listed.pairs;
      tile.head = pair % listed.pairs * listed.heads;
    }
    memory_barrier();
    {
      const int member = tile.column[0], volume = listed.boxes[0] * listed.boxes[1] * listed.boxes[2];
      const bool exists = member < listed.members;
      tile.column[0] = exists;
      tile.column[2] = exists ? member % volume : 0;
      if (exists) tile.head = tile.head + member / volume * ROW_H;
    }
#pragma unroll 1
    for (int a = 2; a >= 0; a--) {
      memory_barrier();
      const int rest = tile.column[1], extent = listed.extent[a], start = rest % listed.blocks[a] * extent;
      tile.column[1] = rest / listed.blocks[a];
      // A warpgroup without rows has none that exist.
      tile.rows[a] = tile.column[0] ? min_(start + extent, INVERSE ? space.axes[a].keys : space.axes[a].queries) : 0;
      tile.row[a] = start;
      memory_barrier();
      const int box = tile.column[2];
      tile.row[a] = tile.row[a] + box % listed.boxes[a] * row_extent(a);
      tile.column[2] = box / listed.boxes[a];
      tile.columns[a] = INVERSE ? space.axes[a].queries : space.axes[a].keys;
      tile.group[a] = 0;
    }
    memory_barrier();
    const uint4 entry = listed.table[tile.list];
    tile.steps = entry.y;
    tile.whole = entry.z;
  }
}

// An item where it is needed, and no sooner: the producer has few registers.
DEVICE u64 again(const u64* item) {
  memory_barrier();
  return *(const volatile u64*)item;
}

// Where a box begins, as TMA takes it.
DEVICE void listed_box(const Space& space, const Tile& tile, const Item& item, int (&at)[3]) {
  at[0] = item.at[0] + ((const volatile Tile&)tile).batch * space.batch_step;
  at[1] = item.at[1];
  at[2] = item.at[2];
}

// What a row sees of a box along an axis, from the box' first column.
template <int A> DEVICE Window seen_along(const Listed& listed, const Tile& tile, int row, const Item& item) {
  Window seen = {0, item.last[A] + 1};
  // What fills a step lies behind all columns.
  if (A == 2) seen.end = min_(seen.end, tile.columns[2] - item.at[2]);
  if (is_causal(A)) {
    const int step = listed.step[A], origin = listed.origin[A];
    if (INVERSE) {
      seen.start = max_(row * step - origin - item.at[A], 0);
    } else {
      const int at = row + origin, columns = at < 0 ? 0 : step == 1 ? at + 1 : at / step + 1;
      seen.end = min_(seen.end, columns - item.at[A]);
    }
  }
  seen.end = max_(seen.start, seen.end);
  return seen;
}

// The part of a box that a row sees; empty where one of the intervals is.
struct Seen {
  Window z, y, x;
  DEVICE Seen(const Listed& listed, const Tile& tile, const int (&row)[PLACE], const Item& item)
      : z(seen_along<0>(listed, tile, row[0], item)), y(seen_along<1>(listed, tile, row[1], item)), x(seen_along<2>(listed, tile, row[2], item)) {}
  DEVICE bool has(int z_, int y_, int x_) const {
    return z_ >= z.start && z_ < z.end && y_ >= y.start && y_ < y.end && x_ >= x.start && x_ < x.end;
  }
  DEVICE bool is_empty() const { return z.start >= z.end || y.start >= y.end || x.start >= x.end; }
};

// Whether a row sees no column.
DEVICE bool sees_nothing(const Listed& listed, const Tile& tile, const int (&row)[PLACE]) {
  if (tile.whole > 0) return false;
  const u64* items = listed.items + listed.table[tile.list].x;
#pragma unroll 1
  for (int i = 0; i < tile.steps * BOXES; i++)
    if (!Seen(listed, tile, row, Item(items[i])).is_empty()) return false;
  return true;
}
