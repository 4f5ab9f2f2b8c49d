// The first launch: CTA `pair * splits + split` has `steps` times KEYS compressed blocks of a pair.

struct CompressedParams {
  float* workspace;
  const u16 *query, *key, *value;
  Workspace places;
  View of_query, of_key, of_value;   // of queries a token is a sample
  int heads_kv, count, splits, steps;
  float scale_log2;
  int unused;
};

extern "C" __global__ void __launch_bounds__(THREADS)
decode_compressed(const __grid_constant__ CompressedParams params) {
  const int pair = blockIdx.x / params.splits, split = blockIdx.x % params.splits;
  const int batch = pair / params.heads_kv, head = pair % params.heads_kv;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u16* const key = of_pair(params.key, params.of_key, batch, head);
  const u16* const value = of_pair(params.value, params.of_value, batch, head);
  const u32 rows = address_of_shared(memory), keys = rows + ROWS_BYTES + warp * 16 * (KEY_PITCH + VALUE_PITCH), values = keys + 16 * KEY_PITCH;
  if (split == 0 && threadIdx.x < 2) ((int*)(params.workspace + params.places.counters))[2 * pair + threadIdx.x] = 0;

  auto token_of = [&](int step) {
    const int token = (split * params.steps + step) * KEYS + warp * 16 + lane;
    return step < params.steps && lane < 16 && token < params.count ? token : -1;
  };
  int token = token_of(0);
  bring<DIM>(keys, key, params.of_key.token, token, lane);
  bring<DIM_V>(values, value, params.of_value.token, token, lane);
  load_rows(of_pair(params.query, params.of_query, batch, head * GROUP), params.of_query.head);
  __syncthreads();

  float* const to = params.workspace + params.places.scores + (i64)pair * params.count * GROUP;
  Sums sums;
  start(sums);
#pragma unroll 1
  for (int step = 0; step < params.steps; step++) {
    const u32 exists = __ballot_sync(~0u, token >= 0);
    const int first = (split * params.steps + step) * KEYS + warp * 16;
    wait_for_copies();
    __syncwarp();
    float scores[2][4];
    score(rows, keys, params.scale_log2, exists, lane, scores);
    __syncwarp();
    token = token_of(step + 1);
    const bool is_last_step = step + 1 == params.steps;
    if (!is_last_step) bring<DIM>(keys, key, params.of_key.token, token, lane);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = 8 * j + lane % 4 * 2 + (i & 1), row = lane / 4 + i / 2 * 8;
        if (row < GROUP && exists >> column & 1) to[(i64)(first + column) * GROUP + row] = scores[j][i];
      }
    add(sums, values, scores, lane);
    __syncwarp();
    if (!is_last_step) bring<DIM_V>(values, value, params.of_value.token, token, lane);
  }
  const i64 place = (i64)pair * params.splits + split;
  leave(sums, params.workspace + params.places.statistics[0] + place * GROUP * 2, params.workspace + params.places.sums[0] + place * GROUP * DIM_V);
}
