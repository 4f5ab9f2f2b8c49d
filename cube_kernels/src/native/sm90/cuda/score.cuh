// The online softmax of a warpgroup's 64 query rows.

struct Softmax {
  float max[2];      // of the raw scores so far
  float sum[2];      // of exp2(scale_log2 * (score - max)), this lane's columns
  float rescale[2];  // what the newest step multiplies older sums with

  DEVICE void start() {
    max[0] = max[1] = NEG_INF;
    sum[0] = sum[1] = 0.f;
  }

  // Turns scores into weights. Every row of a step needs one score that is not -inf, unless LINEAR, BY_ITEM or with a bias.
  DEVICE void step(float (&s)[SCORES], float scale) {
    float a = s[0], b = s[2];
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++) {
      a = fmaxf(a, fmaxf(s[4 * j], s[4 * j + 1]));
      b = fmaxf(b, fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
    a = fmaxf(a, __shfl_xor_sync(~0u, a, 1));
    b = fmaxf(b, __shfl_xor_sync(~0u, b, 1));
    a = fmaxf(max[0], fmaxf(a, __shfl_xor_sync(~0u, a, 2)));
    b = fmaxf(max[1], fmaxf(b, __shfl_xor_sync(~0u, b, 2)));
    // A bias may hide keys by an infinity.
    constexpr bool may_be_hidden = MASK == LINEAR || MASK == BY_ITEM || BIAS;
    const float base_a = may_be_hidden && a == NEG_INF ? 0.f : a, base_b = may_be_hidden && b == NEG_INF ? 0.f : b;
    rescale[0] = exp2_approx((max[0] - base_a) * scale);
    rescale[1] = exp2_approx((max[1] - base_b) * scale);
    max[0] = a;
    max[1] = b;
    const float minus_a = -base_a * scale, minus_b = -base_b * scale;
    float sum_a = 0.f, sum_b = 0.f;
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++) {
      s[4 * j] = exp2_approx(fmaf(s[4 * j], scale, minus_a));
      s[4 * j + 1] = exp2_approx(fmaf(s[4 * j + 1], scale, minus_a));
      s[4 * j + 2] = exp2_approx(fmaf(s[4 * j + 2], scale, minus_b));
      s[4 * j + 3] = exp2_approx(fmaf(s[4 * j + 3], scale, minus_b));
      sum_a += s[4 * j] + s[4 * j + 1];
      sum_b += s[4 * j + 2] + s[4 * j + 3];
    }
    sum[0] = sum[0] * rescale[0] + sum_a;
    sum[1] = sum[1] * rescale[1] + sum_b;
  }

  // Adds up the columns of the other lanes.
  DEVICE void finish() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
  }
};
