// What threads of the forward kernels do with their rows in tensor memory: scores become weights, sums are rescaled and written.

DEVICE void load_scores(float (&x)[64], u32 from) {
  tmem_load(x, from);
  tmem_load(x + 32, from + 32);
  tmem_wait_loads();
  pin(x);
}

// Turns 64 scores into weights, and stores them.
DEVICE void weigh_half(Softmax& softmax, float (&x)[64], float scale, u32 to) {
  softmax.shift(x, scale);
#pragma unroll
  for (int part = 0; part < 2; part++) {
    u32 weights[16];
    softmax.weigh(x + 32 * part, weights);
    tmem_store16(to + 16 * part, weights);
  }
}

// Multiplies a row's sums.
DEVICE void rescale_sums(u32 sums, float factor) {
#pragma unroll 1
  for (int c = 0; c < width_of(DIM_V); c += 32) {
    float x[32];
    tmem_load(x, sums + c);
    tmem_wait_loads();
    pin(x);
#pragma unroll
    for (int j = 0; j < 32; j++) x[j] *= factor;
    tmem_store(sums + c, x);
  }
  tmem_wait_stores();
  tmem_fence_before();
}

// Writes a row; gives whether it has to be computed again.
DEVICE bool finish(const Params& params, const Tile& tile, u32 sums, float sum, float max, int s) {
  int at[3];
  row_of_warpgroup(tile, s, threadIdx.x % 128, at);
  const i64 row = row_index(params.space, tile, at);
  const bool exists = row_exists(tile, at);
  const bool blind = params.additional == 0 && is_blind(params.space, tile, at);
  const float factor = 1.f / sum;
  float poison = fmaf(sum, 0.f, max * 0.f);
#pragma unroll 1
  for (int c = 0; c < width_of(DIM_V); c += 32) {
    float x[32];
    tmem_load(x, sums + c);
    tmem_wait_loads();
    pin(x);
    poison += poison_of(x, DIM_V - c);
    if (exists) store_columns((u16*)params.out + row * DIM_V + c, x, DIM_V - c, factor, blind);
  }
  tmem_fence_before();
  if (exists) params.lse[row] = blind ? NEG_INF : (max * params.scale_log2 + log2_approx(sum)) * LN_2;
  return exists && !blind && !(poison == 0.f);
}
