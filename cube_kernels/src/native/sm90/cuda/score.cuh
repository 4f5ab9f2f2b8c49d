// The online softmax of a warpgroup's 64 query rows.

struct Softmax {
  float max[2];      // of the raw scores, up to a step that raised it; no score since is larger by more than SLACK
  float sum[2];      // of exp2(scale_log2 * (score - max)), this lane's columns
  float rescale[2];  // what the newest step that raised a maximum multiplies older sums with
  bool raises;       // whether that is the newest step of all: the same in all lanes of a warp
  float minus[2];    // -scale_log2 * max
  float limit[2];    // from which on a score raises it

  // Powers of two by which weights may exceed one before older sums are multiplied, which few steps do then.
  static constexpr float SLACK = 8.f;

  // Of rows that may vote, or not: those of another sample must not decide what is summed up in which order.
  DEVICE void start(bool first, bool second) {
    limit[0] = first ? NEG_INF : -NEG_INF;
    limit[1] = second ? NEG_INF : -NEG_INF;
#pragma unroll
    for (int r = 0; r < 2; r++) max[r] = NEG_INF, sum[r] = minus[r] = 0.f;
  }

  // Turns scores into weights. Every row of a step needs one score that is not -inf, unless LINEAR, BY_ITEM or with a bias. With ALWAYS, maxima
  // are those of all scores so far.
  template <bool ALWAYS> DEVICE void step(float (&s)[SCORES], float scale) {
    float a = s[0], b = s[2];
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++) {
      a = fmaxf(a, fmaxf(s[4 * j], s[4 * j + 1]));
      b = fmaxf(b, fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
    // So that NaNs do it, too.
    raises = ALWAYS || __any_sync(~0u, !(a <= limit[0] && b <= limit[1]));
    if (raises) raise<ALWAYS>(a, b, scale);
    float sum_a = 0.f, sum_b = 0.f;
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++) {
      s[4 * j] = exp2_approx(fmaf(s[4 * j], scale, minus[0]));
      s[4 * j + 1] = exp2_approx(fmaf(s[4 * j + 1], scale, minus[0]));
      s[4 * j + 2] = exp2_approx(fmaf(s[4 * j + 2], scale, minus[1]));
      s[4 * j + 3] = exp2_approx(fmaf(s[4 * j + 3], scale, minus[1]));
      sum_a += s[4 * j] + s[4 * j + 1];
      sum_b += s[4 * j + 2] + s[4 * j + 3];
    }
    sum[0] = (ALWAYS ? sum[0] * rescale[0] : sum[0]) + sum_a;
    sum[1] = (ALWAYS ? sum[1] * rescale[1] : sum[1]) + sum_b;
  }

  // Raises the maxima to those of the rows' scores, of which a lane's are at most `a` and `b`.
  template <bool ALWAYS> DEVICE void raise(float a, float b, float scale) {
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
    minus[0] = -base_a * scale;
    minus[1] = -base_b * scale;
    if constexpr (ALWAYS) return;
    sum[0] *= rescale[0];
    sum[1] *= rescale[1];
    if (limit[0] < -NEG_INF) limit[0] = a + SLACK / scale;
    if (limit[1] < -NEG_INF) limit[1] = b + SLACK / scale;
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
