// From lists of blocks to what the kernels of block-sparse attention walk over: boxes of columns, in steps. A warp has a list.
//
// A list names blocks of columns that the rows of a block see. Of each block that exists, the boxes that some row sees become items,
// in the order of the list: first those that all rows see whole, then those that are short or that a causal edge runs through. What is left of the last step
// is filled with boxes behind all columns; a list without items has such a step as well, for rows that see nothing have results.
// Rows are queries and columns are keys or, TURNED, the other way round, with lists that `sparse/invert.rs` made.

struct Axis {
  int rows, columns;
  int row_block, column_block;   // of a block
  int row_blocks, column_blocks; // blocks
  int box, boxes;                // columns of a box, boxes of a block
  int origin, step;              // query i stands at i + origin, key j at j * step
  int is_causal;
};

struct Params {
  uint4* table;                  // first item, steps, and steps without a mask of each list
  u64* items;
  int* taken;                    // set to zero for the launch that follows
  const int* lists;              // [batch, row blocks, heads, entries], or what each list has behind the other
  const u32* starts;             // TURNED: where lists begin, [batch * heads, row blocks + 1]
  Axis axes[3];
  int lists_count;               // [batch, heads, row blocks]
  int heads;
  int entries;                   // of a list, or, TURNED, of all lists of a head
  int boxes_of_step;
  int padding;
};

DEVICE int keys_before(const Axis& axis, int query) {
  const int at = query + axis.origin;
  return at < 0 ? 0 : at / axis.step + 1;
}

enum { NONE = 0, WHOLE = 1, PART = 2 };

// Box number `box` of a block of columns, for a block of rows.
DEVICE int classify(const Params& params, int row_block, int column_block, int box, u64& item) {
  int at[3], last[3];
  bool whole = true, some = true;
#pragma unroll
  for (int a = 2; a >= 0; a--) {
    const Axis& axis = params.axes[a];
    const int first_row = row_block % axis.row_blocks * axis.row_block, row_end = min_(first_row + axis.row_block, axis.rows);
    const int first = column_block % axis.column_blocks * axis.column_block;
    const int start = first + box % axis.boxes * axis.box, end = min_(min_(start + axis.box, first + axis.column_block), axis.columns);
    row_block /= axis.row_blocks;
    column_block /= axis.column_blocks;
    box /= axis.boxes;
    some = some && start < end;
    whole = whole && end - start == axis.box;
    if (axis.is_causal) {
      // From the first query's to the last one's edge.
      const int least = TURNED ? keys_before(axis, start) : keys_before(axis, first_row);
      const int most = TURNED ? keys_before(axis, end - 1) : keys_before(axis, row_end - 1);
      some = some && most > (TURNED ? first_row : start);
      whole = whole && least >= (TURNED ? row_end : end);
    }
    at[a] = start;
    last[a] = end - start - 1;
  }
  const u32 end = (last[0] * params.axes[1].box + last[1]) * params.axes[2].box + last[2];
  item = (u64)((u32)at[1] | (u32)at[0] << 16) << 32 | (u32)at[2] | end << 26;
  return !some ? NONE : whole ? WHOLE : PART;
}

#if TURNED
// The order in which blocks of rows are taken: first those whose lists are long, for a CTA that begins with one when others end is alone
// with it. Both kinds stay in their order. One CTA looks at all of them twice.
struct Order {
  const uint4* table;
  int* order;                    // [pairs, row blocks]
  int pairs, row_blocks;
  int lists_of_pair;             // one behind the other, each of all row blocks
  int longest;                   // steps of a list that is not long
};

extern "C" __global__ void __launch_bounds__(1024) attention_order(const __grid_constant__ Order params) {
  __shared__ int of_warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = params.pairs * params.row_blocks;
  int longs = 0, all_longs = 0;  // ahead of a portion
#pragma unroll 1
  for (int writes = 0; writes < 2; writes++) {
    longs = 0;
#pragma unroll 1
    for (int base = 0; base < count; base += 1024) {
      const int row = base + threadIdx.x;
      int steps = 0;
      if (row < count) {
        const int list = row / params.row_blocks * params.lists_of_pair * params.row_blocks + row % params.row_blocks;
#pragma unroll 1
        for (int i = 0; i < params.lists_of_pair; i++) steps = max_(steps, (int)params.table[list + i * params.row_blocks].y);
      }
      const bool is_long = steps > params.longest;
      const u32 lanes = __ballot_sync(~0u, is_long);
      if (lane == 0) of_warps[warp] = __popc(lanes);
      __syncthreads();
      int before = longs + __popc(lanes & ((1u << lane) - 1));
#pragma unroll 1
      for (int w = 0; w < 32; w++) {
        const int more = of_warps[w];
        before += w < warp ? more : 0;
        longs += more;
      }
      if (writes && row < count) params.order[is_long ? before : all_longs + row - before] = row;
      __syncthreads();
    }
    all_longs = longs;
  }
}
#endif

extern "C" __global__ void __launch_bounds__(128) attention_lists(const __grid_constant__ Params params) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *params.taken = 0;
  const int list = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (list >= params.lists_count) return;
  const int row_blocks = params.axes[0].row_blocks * params.axes[1].row_blocks * params.axes[2].row_blocks;
  const int column_blocks = params.axes[0].column_blocks * params.axes[1].column_blocks * params.axes[2].column_blocks;
  const int boxes = params.axes[0].boxes * params.axes[1].boxes * params.axes[2].boxes, step = params.boxes_of_step;
  const int pair = list / row_blocks, row_block = list % row_blocks;
  const int* entries;
  int count = params.entries, first;
  if (TURNED) {
    const u32* start = params.starts + (i64)pair * (row_blocks + 1) + row_block;
    entries = params.lists + (i64)pair * params.entries + start[0];
    count = start[1] - start[0];
    first = (pair * params.entries + (int)start[0]) * boxes + list * step;
  } else {
    const int batch = pair / params.heads, head = pair % params.heads;
    entries = params.lists + (((i64)batch * row_blocks + row_block) * params.heads + head) * params.entries;
    first = list * (params.entries * boxes + step);
  }
  u64* items = params.items + first;
  int whole = 0, all = 0;
#pragma unroll 1
  for (int writes = 0; writes < 2; writes++) {
    // Where the next items go: those without a mask are counted first.
    int next[2] = {0, whole};
#pragma unroll 1
    for (int i = lane; i - lane < count * boxes; i += 32) {
      u64 item;
      int kind = NONE;
      if (i < count * boxes) {
        const int block = entries[i / boxes];
        if ((u32)block < (u32)column_blocks) kind = classify(params, row_block, block, i % boxes, item);
      }
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const u32 lanes = __ballot_sync(~0u, kind == (k ? PART : WHOLE));
        if (writes && kind == (k ? PART : WHOLE)) items[next[k] + __popc(lanes & ((1u << lane) - 1))] = item;
        next[k] += __popc(lanes);
      }
    }
    if (!writes) whole = next[0];
    all = next[1];
  }
  const int steps = all > 0 ? (all + step - 1) / step : 1;
  for (int i = all + lane; i < steps * step; i += 32) items[i] = 0x3FFFFFF;
  if (lane == 0) params.table[list] = make_uint4(first, steps, whole / step, 0);
}
