// What threads of the backward kernels do with their rows: statistics of queries, sums in tensor memory, rows that are computed again.

// Logsumexp and delta of the row, where rows are queries.
DEVICE float2 row_statistics(const Params& params, const Tile& tile, const int (&at)[3]) {
  float2 row = {0.f, 0.f};
  if (!INVERSE && row_exists(tile, at)) {
    const float4 found = statistics_of(params, tile, tile.head, at);
    row.x = found.z, row.y = found.w;
  }
  return row;
}

// Writes every other 32 columns of a sum. Gives zero, or NaN where one of them is infinite or NaN.
template <int N> DEVICE float store_sums(u16* row, u32 sums, float factor, bool exists, int half) {
  float poison = 0.f;
#pragma unroll 1
  for (int c = 32 * half; c < N; c += 64) {
    float x[32];
    tmem_load(x, sums + c);
    tmem_wait_loads();
    pin(x);
    poison += poison_of(x, N - c);
    if (exists) store_columns(row + c, x, N - c, factor, false);
  }
  return poison;
}

// Called by two warps, for half of the rows each.
template <class Barriers> DEVICE void repair(const Params& params, const Work* slots, const Barriers& b, int half) {
  for (int tiles = 0;; tiles++) {
    const Work& work = slots[slot_of(tiles)];
    barrier_wait(b.work_full(slot_of(tiles)), parity_of_slot(tiles));
    if (uniform(work.tile.steps) == 0) break;
    barrier_wait(b.results_full(slot_of(tiles)), parity_of_slot(tiles));
#pragma unroll 1
    for (int warp = 2 * half; warp < 2 * half + 2; warp++)
      repair_rows(params, work.tile, 0, warp, uniform(work.broken[warp] | work.broken[4 + warp]));
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(b.work_empty(slot_of(tiles)));
  }
}
