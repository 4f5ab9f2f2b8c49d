// The first launch: CTA `pair * splits + split` has `steps` times KEYS compressed blocks of a pair; the last of a pair appends before that.

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
decode_compressed(const __grid_constant__ CompressedParams params, const __grid_constant__ AppendParams appended) {
  let_next_launch_begin();
  const int pair = blockIdx.x / params.splits, split = blockIdx.x % params.splits;
  const int batch = pair / params.heads_kv, head = pair % params.heads_kv;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (split == 0 && threadIdx.x < 2) ((int*)(params.workspace + params.places.counters))[2 * pair + threadIdx.x] = 0;
  if (split == params.splits - 1) append(appended, batch, head);

  const Tokens from = {of_pair(params.key, params.of_key, batch, head), of_pair(params.value, params.of_value, batch, head), params.of_key.token,
                       params.of_value.token};
  auto first_of = [&](int step) { return (split * params.steps + step) * KEYS + warp * 16; };
  auto token_of = [&](int step) {
    const int token = first_of(step) + lane;
    return lane < 16 && token < params.count ? token : -1;
  };
  float* const to = params.workspace + params.places.scores + (i64)pair * params.count * GROUP;
  auto keep = [&](int step, u32 exists, const float (&scores)[2][4]) {
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = 8 * j + lane % 4 * 2 + (i & 1), row = lane / 4 + i / 2 * 8;
        if (row < GROUP && exists >> column & 1) to[(i64)(first_of(step) + column) * GROUP + row] = scores[j][i];
      }
  };
  const int steps = steps_of(params.count, split, params.steps);
  Sums sums;
  attend(sums, of_pair(params.query, params.of_query, batch, head * GROUP), params.of_query.head, from, params.scale_log2, steps, token_of, keep);
  const i64 place = (i64)pair * params.splits + split;
  leave(sums, params.workspace + params.places.statistics[0] + place * GROUP * 2, params.workspace + params.places.sums[0] + place * GROUP * DIM_V);
}
