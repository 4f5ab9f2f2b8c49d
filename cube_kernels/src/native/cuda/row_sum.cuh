// A row of attention by one warp, a key after the other: for rows that the fast path cannot be trusted with.

struct Accumulator {
  float max, sum, out[(DIM_V + 31) / 32];
};

DEVICE void see(Accumulator& row, const float (&q)[(DIM + 31) / 32], const u16* key, const u16* value, float scale, float bias, int lane) {
  float score = 0.f;
#pragma unroll
  for (int i = 0; i < (DIM + 31) / 32; i++)
    if (i * 32 + lane < DIM) score += q[i] * unpack(key[i * 32 + lane]);
#pragma unroll
  for (int mask = 16; mask; mask >>= 1) score += __shfl_xor_sync(~0u, score, mask);
  score *= scale;
  if constexpr (BIAS) score += bias * LOG2_E;
  const float max = fmaxf(row.max, score);
  const float base = max == NEG_INF ? 0.f : max;
  const float rescale = exp2f(row.max - base), weight = exp2f(score - base);
  row.max = max;
  row.sum = row.sum * rescale + weight;
#pragma unroll
  for (int i = 0; i < (DIM_V + 31) / 32; i++)
    if (i * 32 + lane < DIM_V) row.out[i] = row.out[i] * rescale + weight * unpack(value[i * 32 + lane]);
}
