// The third launch: CTA `pair * splits + split` has `steps` times KEYS tokens of a pair, of its list or, behind those, of its window, for which it does
// not wait for lists. The last CTA of a pair makes both branches of their sums, and adds up all three by the gates.

struct TokensParams {
  float* workspace;
  u16* out;              // [batch, heads, DIM_V]
  u16 *out_selected, *out_window;
  float *lse_selected, *lse_window;   // [batch, heads]
  const u16 *query, *key, *value, *key_window, *value_window, *out_compressed;
  const u16* gates;
  const int* lists;      // [batch, heads_kv, entries]
  Workspace places;
  View of_query, of_key, of_value, of_key_window, of_value_window, of_gates;
  int heads_kv, splits, window_splits, count;   // splits are those of the list and of the window together
  int entries, block;    // tokens of a block
  int first, window;     // where the window's first token is, and how many there are
  int steps;
  float scale_log2;
};

extern "C" __global__ void __launch_bounds__(THREADS, 2)
decode_tokens(const __grid_constant__ TokensParams params) {
  __shared__ int before;
  const int pair = blockIdx.x / params.splits, split = blockIdx.x % params.splits, of_list = params.splits - params.window_splits;
  const bool is_window = split >= of_list;
  const int number = is_window ? split - of_list : split;
  const int batch = pair / params.heads_kv, head = pair % params.heads_kv;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // What a window reads before it waits, the new token among it, comes by copies that pass the cache of the multiprocessor.
  if (!is_window) wait_for_launch_ahead();
  const View &of_key = is_window ? params.of_key_window : params.of_key, &of_value = is_window ? params.of_value_window : params.of_value;
  const int steps = steps_of(is_window ? params.window : (i64)params.entries * params.block, number, params.steps);
  auto token_of = [&](int step) {
    const int place = (number * params.steps + step) * KEYS + warp * 16 + lane;
    if (lane >= 16) return -1;
    if (is_window) return place < params.window ? params.first + place : -1;
    const int entry = place / params.block;
    const int block = entry < params.entries ? params.lists[pair * params.entries + entry] : -1;
    const int token = block * params.block + place % params.block;
    return block >= 0 && token < params.count ? token : -1;
  };
  const Tokens from = {of_pair(is_window ? params.key_window : params.key, of_key, batch, head),
                       of_pair(is_window ? params.value_window : params.value, of_value, batch, head), of_key.token, of_value.token};
  Sums sums;
  attend(sums, of_pair(params.query, params.of_query, batch, head * GROUP), params.of_query.head, from, params.scale_log2, steps, token_of,
         [](int, u32, const float (&)[2][4]) {});
  const Workspace& places = params.places;
  float* const statistics = params.workspace + places.statistics[1] + (i64)pair * params.splits * GROUP * 2;
  float* const all = params.workspace + places.sums[1] + (i64)pair * params.splits * GROUP * DIM_V;
  leave(sums, statistics + split * GROUP * 2, all + (i64)split * GROUP * DIM_V);
  if (is_window) wait_for_launch_ahead();
  if (!is_last((int*)(params.workspace + places.counters) + 2 * pair + 1, params.splits, before)) return;

  const u16* const gates = of_pair(params.gates, params.of_gates, batch, head * GROUP);
  const float *const of_window = statistics + of_list * GROUP * 2, *const all_of_window = all + (i64)of_list * GROUP * DIM_V;
#pragma unroll 1
  for (int i = threadIdx.x; i < GROUP * DIM_V / 4; i += THREADS) {
    const int row = i / (DIM_V / 4), column = i % (DIM_V / 4) * 4;
    const i64 at = ((i64)pair * GROUP + row) * DIM_V + column;
    // What is added up are the branches as they are returned.
    uint2 branches[3] = {*(const uint2*)(params.out_compressed + at)};
    float weights[3], sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int branch = 0; branch < 3; branch++) weights[branch] = unpack(gates[row * params.of_gates.head + branch * params.of_gates.token]);
    Total totals[2] = {nothing(), nothing()};
    // Of both at once, as each round waits for memory.
#pragma unroll 1
    for (int first = 0, first_of_window = 0; first < of_list || first_of_window < params.window_splits; first += 4, first_of_window += 2) {
      Some<1, 4> selected;
      Some<1, 2> recent;
      selected.load(statistics, all, first, of_list, row, column);
      recent.load(of_window, all_of_window, first_of_window, params.window_splits, row, column);
      selected.add_to(totals[0], first, of_list);
      recent.add_to(totals[1], first_of_window, params.window_splits);
    }
#pragma unroll
    for (int branch = 1; branch < 3; branch++) branches[branch] = normalized(totals[branch - 1]);
#pragma unroll
    for (int branch = 0; branch < 3; branch++) {
      const u32 low = branches[branch].x, high = branches[branch].y;
      sums[0] += weights[branch] * unpack((u16)low), sums[1] += weights[branch] * unpack((u16)(low >> 16));
      sums[2] += weights[branch] * unpack((u16)high), sums[3] += weights[branch] * unpack((u16)(high >> 16));
    }
    *(uint2*)(params.out_selected + at) = branches[1];
    *(uint2*)(params.out_window + at) = branches[2];
    *(uint2*)(params.out + at) = make_uint2(pack(sums[0], sums[1]), pack(sums[2], sums[3]));
    if (column == 0) {
      params.lse_selected[pair * GROUP + row] = logsumexp(totals[0].of) * LN_2;
      params.lse_window[pair * GROUP + row] = logsumexp(totals[1].of) * LN_2;
    }
  }
}
