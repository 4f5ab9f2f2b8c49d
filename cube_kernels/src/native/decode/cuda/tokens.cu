// The third launch: CTA `pair * splits + split` has `steps` times KEYS tokens of a pair, of its list or, behind those, of its window. The last
// CTA of a pair makes both branches of their sums, and adds up all three by the gates.

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

extern "C" __global__ void __launch_bounds__(THREADS)
decode_tokens(const __grid_constant__ TokensParams params) {
  __shared__ Row rows[2][GROUP];
  __shared__ int before;
  const int pair = blockIdx.x / params.splits, split = blockIdx.x % params.splits;
  const int batch = pair / params.heads_kv, head = pair % params.heads_kv;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int of_list = params.splits - params.window_splits;
  const bool is_window = split >= of_list;
  const View &of_key = is_window ? params.of_key_window : params.of_key, &of_value = is_window ? params.of_value_window : params.of_value;
  const int number = is_window ? split - of_list : split;
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
  if (!is_last((int*)(params.workspace + places.counters) + 2 * pair + 1, params.splits, before)) return;

  constexpr int LANES = 8;
#pragma unroll 1
  for (int first = 0; first < 2 * GROUP; first += THREADS / LANES) {
    const int own = first + threadIdx.x / LANES, of_window = own / GROUP, row = own % GROUP;
    const bool exists = own < 2 * GROUP;
    const Row of = over_splits<LANES>(statistics + (exists ? of_window : 0) * of_list * GROUP * 2, of_window ? params.window_splits : of_list, row);
    if (!exists || threadIdx.x % LANES > 0) continue;
    rows[of_window][row] = of;
    (of_window ? params.lse_window : params.lse_selected)[pair * GROUP + row] = logsumexp(of.most, of.sum) * LN_2;
  }
  __syncthreads();
  const u16* const gates = of_pair(params.gates, params.of_gates, batch, head * GROUP);
  for (int i = threadIdx.x; i < GROUP * DIM_V / 4; i += THREADS) {
    const int row = i / (DIM_V / 4), column = i % (DIM_V / 4) * 4;
    const i64 at = ((i64)pair * GROUP + row) * DIM_V + column, behind = (i64)of_list * GROUP;
    // What is added up are the branches as they are returned.
    const uint2 branches[3] = {
        *(const uint2*)(params.out_compressed + at),
        over_splits<1, 8>(statistics, all, of_list, row, column, rows[0][row]),
        over_splits<1, 8>(statistics + 2 * behind, all + behind * DIM_V, params.window_splits, row, column, rows[1][row])};
    float total[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int branch = 0; branch < 3; branch++) {
      const float gate = unpack(gates[row * params.of_gates.head + branch * params.of_gates.token]);
      const u32 low = branches[branch].x, high = branches[branch].y;
      total[0] += gate * unpack((u16)low), total[1] += gate * unpack((u16)(low >> 16));
      total[2] += gate * unpack((u16)high), total[3] += gate * unpack((u16)(high >> 16));
    }
    *(uint2*)(params.out_selected + at) = branches[1];
    *(uint2*)(params.out_window + at) = branches[2];
    uint2 out;
    out.x = pack(total[0], total[1]), out.y = pack(total[2], total[3]);
    *(uint2*)(params.out + at) = out;
  }
}
