// tokens[k] = scale * sum over (q, s) that see it of weights[q, s] rows[q]
//
// The transposed sums: a tile is one of keys, its halo the queries that see any of them, whose vectors and weights lie in shared memory:
// `[HALO_Y, HALO_X, HEADS, SLOTS]`. Heads of rows that share one of tokens follow each other.

constexpr int STAGE = HEADS * HALO_Y * HALO_X * PITCH;

// A query along one axis, as a key sees it.
struct Visitor {
  int start, count;
};

template <bool Causal> DEVICE Visitor visitor(const Axis& axis, int position, int length) {
  const Window seen = window<Causal>(axis, position, length);
  return {seen.start, position < length ? seen.end - seen.start : 0};
}

// Adds the queries of one position along the slowest axis to the sums of one part. Keys are of the tile, queries from `from` on.
DEVICE void add(const Params& params, const Tile& tile, const Halo& halo, const u16* stage, const Row (&keys)[2], int h, int from_y, int from_x,
                const Visitor (&along_x)[SPAN_X / 8][2], float (&sums)[DIM / 8][4]) {
  const int lane = threadIdx.x % 32, pair = 2 * (lane % 4);
  const u32 rows = address_of_shared(memory) + ((h * HALO_Y + from_y - halo.y) * HALO_X + from_x - halo.x + lane % 16) * PITCH + 16 * (lane / 16);
#pragma unroll 2
  for (int r = 0; r < SPAN_Y; r++) {
    const Visitor along_y = visitor<CAUSAL_Y>(params.axes[1], from_y + r, tile.y.length);
#pragma unroll
    for (int c = 0; c < SPAN_X / 16; c++) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int slot_y = tile.y.first + keys[i % 2].y - along_y.start, block = 2 * c + i / 2;
        const bool is_seen = keys[i % 2].is_there && (u32)slot_y < (u32)along_y.count;
        u32 halves[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const Visitor& query = along_x[block][e];
          const int slot_x = tile.x.first + keys[i % 2].x - query.start;
          const int place = (from_y - halo.y + r) * HALO_X + from_x - halo.x + 8 * block + pair + e;
          halves[e] = is_seen && (u32)slot_x < (u32)query.count ? stage[(place * HEADS + h) * SLOTS + slot_y * KERNEL_X + slot_x] : 0;
        }
        a[i] = halves[0] | halves[1] << 16;
      }
#pragma unroll
      for (int d = 0; d < DIM / 16; d++) {
        u32 b[4];
        load_transposed(b, rows + (r * HALO_X + 16 * c) * PITCH + 32 * d);
        mma(sums[2 * d], a, b[0], b[1]);
        mma(sums[2 * d + 1], a, b[2], b[3]);
      }
    }
  }
}

// A key of those of a part of which some are no numbers, in which nothing has a share that does not see it.
DEVICE void sum_key(const Params& params, const Tile& tile, int h, int y, int x) {
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
            const u16* const weights = params.weights + (row_at(params, tile, z, y, x) + head) * KERNEL_Z * SLOTS;
            const u16* const row = params.rows + vector_at(params, tile, params.row_strides, z, y, x, head);
            sum = fmaf(unpack(weights[(slot_z * KERNEL_Y + slot_y) * KERNEL_X + slot_x]), unpack(row[d]), sum);
          }
        }
      }
    }
    params.tokens[vector_at(params, tile, params.token_strides, at_z, at_y, at_x, tile.head + h) + d] = (u16)pack(sum * params.scale, 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) unfused_spread(const __grid_constant__ Params params) {
  const Tile tile = tile_of(params);
  if (tile.is_empty()) return;
  const Halo halo = halo_of<false>(params, tile);
  const Window planes = visitors<CAUSAL_Z>(params.axes[0], tile.z.first, tile.z.length);
  u8* const stage = memory + STAGE;
  const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int h = part / BANDS, y = part % BANDS / BANDS_X * BAND_Y, x = part % BANDS % BANDS_X * BAND_X;
  const bool is_there = tile.y.first + y < tile.y.length && tile.x.first + x < tile.x.length;
  const int from_y = visitors<CAUSAL_Y>(params.axes[1], tile.y.first + y, tile.y.length).start;
  const int from_x = visitors<CAUSAL_X>(params.axes[2], tile.x.first + x, tile.x.length).start;
  Row keys[2];
#pragma unroll
  for (int i = 0; i < 2; i++) keys[i] = row_of<false>(params, tile, lane / 4 + 8 * i, y, x, from_y, from_x);
  Visitor along_x[SPAN_X / 8][2];
#pragma unroll
  for (int c = 0; c < SPAN_X / 8; c++) {
#pragma unroll
    for (int e = 0; e < 2; e++) along_x[c][e] = visitor<CAUSAL_X>(params.axes[2], from_x + 8 * c + 2 * (lane % 4) + e, tile.x.length);
  }
  float sums[DIM / 8][4] = {};
#pragma unroll 1
  for (int turn = 0; turn < GROUP * (planes.end - planes.start); turn++) {
    const int z = planes.start + turn / GROUP, member = turn % GROUP;
    const int plane = tile.z.first - window<CAUSAL_Z>(params.axes[0], z, tile.z.length).start;
    if (turn > 0) __syncthreads();
    // Heads of a CTA are neighbors, which those of several groups are not.
    move_weights<HALO_Y, HALO_X, false>(params, tile, halo, stage, z, tile.head * GROUP + member, plane);
    load_halo(params, tile, halo, params.rows, params.row_strides, memory, z, [&](int h) { return (tile.head + h) * GROUP + member; });
    __syncthreads();
    if (is_there) add(params, tile, halo, (const u16*)stage, keys, h, from_y, from_x, along_x, sums);
  }
  if (!is_there) return;
  if (has_nan(sums, keys[0].is_there, keys[1].is_there)) {
#pragma unroll 1
    for (int key = 0; key < 16; key++) sum_key(params, tile, h, y + key / BAND_X, x + key % BAND_X);
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (!keys[i].is_there) continue;
    const i64 to = vector_at(params, tile, params.token_strides, tile.z.first, tile.y.first + keys[i].y, tile.x.first + keys[i].x, tile.head + h);
    store_row(params.tokens + to, sums, i, params.scale);
  }
}
