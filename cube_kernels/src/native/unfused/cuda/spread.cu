// tokens[k] = scale * sum over (q, s) that see it of weights[q, s] rows[q]
//
// The transposed sums: a tile is one of keys, its halo the queries that see any of them, whose vectors and weights lie in shared memory:
// `[HALO_Y, HALO_X, HEADS, ROW]`, LINE bytes to a line. Heads of rows that share one of tokens follow each other.

constexpr int STAGE = HEADS * HALO_Y * HALO_X * PITCH;

// Adds the queries of one position along the slowest axis to the sums of one part of keys.
DEVICE void add(const Params& params, const Tile& tile, const Halo& halo, const u16* stage, const Part& part, float (&sums)[DIM / 8][4]) {
  const int lane = threadIdx.x % 32;
  const int from_y = visitors<CAUSAL_Y>(params.axes[1], tile.y.first + part.y, tile.y.length).start;
  const int from_x = visitors<CAUSAL_X>(params.axes[2], tile.x.first + part.x, tile.x.length).start;
  // Where the slots of two keys in the windows of a lane's columns are, but for the slower axis; what is seen of a pair of columns. All
  // slots are read, and those that are not the key's become zero. In which order a product takes its columns is all the same: lanes have
  // neighbors, whose slots lie in different banks.
  const u16* slots[2][SPAN_X / 8][2];
  u32 masks[2][SPAN_X / 8];
  int at_y[2];
  const u16* const corner = stage + (from_y - halo.y) * (LINE / 2) + (from_x - halo.x + lane % 4) * HEADS * ROW + part.h * ROW;
#if SHIFTED
  const int step_y = (int)params.axes[1].dilation.value * params.axes[2].length * params.heads * SLOTS;
  const u32 first = (u32)(u64)(params.weights + (row_at(params, tile, tile.z.first, from_y, halo.x) + tile.head) * SLOTS) / 2;
#endif
#pragma unroll
  for (int c = 0; c < SPAN_X / 8; c++) {
    masks[0][c] = masks[1][c] = 0;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int column = 8 * c + 4 * e, position = from_x + column + lane % 4;
      const Window seen = window<CAUSAL_X>(params.axes[2], position, tile.x.length);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const Row key(tile, part, i);
        const int at_x = tile.x.first + key.x;
        at_y[i] = tile.y.first + key.y;
        slots[i][c][e] = corner + column * HEADS * ROW + at_x - seen.start;
        if (key.is_there && position < tile.x.length && seen.start <= at_x && at_x < seen.end) masks[i][c] |= 0xffffu << 16 * e;
      }
    }
  }
  const int column = lane % 16 / 8 * 8 + lane % 8 / 2 + 4 * (lane % 2);
  const u32 rows = address_of_shared(memory) + ((part.h * HALO_Y + from_y - halo.y) * HALO_X + from_x - halo.x + column) * PITCH + 16 * (lane / 16);
  // At a border a key has more visitors than elsewhere.
  const int end = visitors<CAUSAL_Y>(params.axes[1], tile.y.first + part.y + BAND_Y - 1, tile.y.length).end - from_y;
#pragma unroll(SPAN_X <= 16 ? 4 : 1)
  for (int r = 0; r < end; r++) {
    const Window seen = window<CAUSAL_Y>(params.axes[1], from_y + r, tile.y.length);
    u32 is_line[2];
#pragma unroll
    for (int i = 0; i < 2; i++) is_line[i] = from_y + r < tile.y.length && seen.start <= at_y[i] && at_y[i] < seen.end ? ~0u : 0;
#if SHIFTED
    const int line = r * (LINE / 2) + (int)((first + (u32)(r * step_y)) % 8);
#else
    const int line = r * (LINE / 2);
#endif
#pragma unroll
    for (int c = 0; c < SPAN_X / 8; c += 2) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i % 2, block = c + i / 2, slot = line + (at_y[row] - seen.start) * KERNEL_X;
        a[i] = (slots[row][block][0][slot] | (u32)slots[row][block][1][slot] << 16) & masks[row][block] & is_line[row];
      }
      add_products(sums, a, rows + (r * HALO_X + 8 * c) * PITCH);
    }
  }
}

// A key of those of a part of which some are no numbers, in which nothing has a share that does not see it.
__device__ __noinline__ void sum_key(const Params& params, const Tile& tile, int h, int y, int x) {
  const int at_z = tile.z.first, at_y = tile.y.first + y, at_x = tile.x.first + x;
  if (at_y >= tile.y.length || at_x >= tile.x.length) return;
  const Window along_z = visitors<CAUSAL_Z>(params.axes[0], at_z, tile.z.length), along_y = visitors<CAUSAL_Y>(params.axes[1], at_y, tile.y.length);
  const Window along_x = visitors<CAUSAL_X>(params.axes[2], at_x, tile.x.length);
  for (int d = threadIdx.x % 32; d < DIM; d += 32) {
    float sum = 0.f;
    for (int head = (tile.head + h) * GROUP; head < (tile.head + h + 1) * GROUP; head++) {
      for (int z = along_z.start; z < along_z.end; z++) {
        const int slot_z = at_z - window<CAUSAL_Z>(params.axes[0], z, tile.z.length).start;
        for (int y = along_y.start; y < along_y.end; y++) {
          const int slot_y = at_y - window<CAUSAL_Y>(params.axes[1], y, tile.y.length).start;
          for (int x = along_x.start; x < along_x.end; x++) {
            const int slot_x = at_x - window<CAUSAL_X>(params.axes[2], x, tile.x.length).start;
            const u16* const weights = params.weights + (row_at(params, tile, z, y, x) + head) * ROW_PITCH;
            const u16* const row = rows_of(params, tile) + vector_at(params, tile, params.row_strides, z, y, x, head);
            sum = fmaf(unpack(weights[(slot_z * KERNEL_Y + slot_y) * KERNEL_X + slot_x]), unpack(row[d]), sum);
          }
        }
      }
    }
    tokens_of(params, tile)[vector_at(params, tile, params.token_strides, at_z, at_y, at_x, tile.head + h) + d] = (u16)pack(sum * params.scale, 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS) unfused_spread(const __grid_constant__ Params params) {
  const Tile tile = tile_of(params);
  if (tile.is_empty()) return;
  const Halo halo = halo_of<false>(params, tile);
  const Window planes = visitors<CAUSAL_Z>(params.axes[0], tile.z.first, tile.z.length);
  u8* const stage = memory + STAGE;
  float sums[DIM / 8][4];
  const int turns = GROUP * (planes.end - planes.start);
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    const int z = planes.start + turn / GROUP, member = turn % GROUP;
    const int plane = tile.z.first - window<CAUSAL_Z>(params.axes[0], z, tile.z.length).start;
    if (turn > 0) __syncthreads();
    move_weights<HALO_Y, HALO_X, false>(params, tile, halo, stage, z, tile.head * GROUP + member, plane);
    load_halo(params, tile, halo, rows_of(params, tile), params.row_strides, memory, z, [&](int h) { return (tile.head + h) * GROUP + member; });
    wait_for_copies();
    __syncthreads();
    // A warp has one part where there are several turns.
#pragma unroll 1
    for (int number = threadIdx.x / 32; number < PARTS; number += WARPS) {
      const Part part(number);
      if (!part.is_in(tile)) continue;
      if (turn == 0) zero(sums);
      add(params, tile, halo, (const u16*)stage, part, sums);
      if (turn + 1 < turns) continue;
      const Row keys[2] = {Row(tile, part, 0), Row(tile, part, 1)};
      if (has_nan(sums, keys[0].is_there, keys[1].is_there)) {
#pragma unroll 1
        for (int key = 0; key < 16; key++) sum_key(params, tile, part.h, part.y + key / BAND_X, part.x + key % BAND_X);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (!keys[i].is_there) continue;
        const int to = vector_at(params, tile, params.token_strides, tile.z.first, tile.y.first + keys[i].y, tile.x.first + keys[i].x, tile.head + part.h);
        store_row(tokens_of(params, tile) + to, sums, i, params.scale);
      }
    }
  }
}
