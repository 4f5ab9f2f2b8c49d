// The online softmax of a warpgroup's 64 query rows, which asks for no maxima: a row's weights are powers of two from a reference, its
// largest score of the first step in which it sees anything. Weights in 16 bits say by their bits that they have become large; the row's
// reference is then raised, and its sums and weights are multiplied. A row whose scores grow by 2^128 in weights from one step to the next
// becomes infinite, and is computed again.

// Pairs of weights, which are not negative.
#if BF16
constexpr u32 LARGE_BITS = 0x40004000;  // of two or more, of infinity and of NaN
DEVICE u32 larger_of(u32 a, u32 b) { return a | b; }  // as far as these bits say
DEVICE bool has_large(u32 bits) { return bits != 0; }
#else
constexpr u32 LARGE_BITS = ~0u;
DEVICE u32 larger_of(u32 a, u32 b) { return max_pair(a, b); }
DEVICE bool has_large(u32 both) { return max_pair(both, 0x5BFF5BFF) != 0x5BFF5BFF; }  // 256 or more, infinity and NaN
#endif

struct Softmax {
  float reference[2];  // raw score of the row whose weight is 2^-HEADROOM, about; -inf for a row that has seen nothing
  float sum[2];        // of exp2(scale_log2 * score + minus), this lane's columns
  float minus[2];      // -(scale_log2 * reference + HEADROOM)
  u32 watched[2];      // bits of the row's weights that are looked at; none of one of another sample, which must not decide anything
  bool settled;        // whether all rows of the warp have a reference that need one: the same in all lanes of a warp

  // Weights of 2^LIMIT are large. In bf16 small ones are as exact as others, so that one bit can say it; in f16 they are not.
  static constexpr int HEADROOM = BF16 ? 8 : 0, LIMIT = BF16 ? 1 : 8;
  // A bias may hide by a finite number. Powers of two that a score is below zero: as good as unseen, and too few for a reference after such ones.
  static constexpr float HIDDEN_POWERS = 400.f, TRUSTED_POWERS = 300.f;

  DEVICE void start(bool first, bool second) {
    watched[0] = first ? LARGE_BITS : 0;
    watched[1] = second ? LARGE_BITS : 0;
    settled = false;
#pragma unroll
    for (int r = 0; r < 2; r++) reference[r] = minus[r] = NEG_INF, sum[r] = 0.f;
  }

  // Turns scores into weights: those of some of the columns, from the first ones on.
  template <int BEGIN = 0, int END = SCORES / 4> DEVICE void step(float (&s)[SCORES], float scale) {
    if (BEGIN == 0 && !settled) refer(s, scale);
    float sum_a = 0.f, sum_b = 0.f;
#pragma unroll
    for (int j = BEGIN; j < END; j++) {
      s[4 * j] = exp2_approx(fmaf(s[4 * j], scale, minus[0]));
      s[4 * j + 1] = exp2_approx(fmaf(s[4 * j + 1], scale, minus[0]));
      s[4 * j + 2] = exp2_approx(fmaf(s[4 * j + 2], scale, minus[1]));
      s[4 * j + 3] = exp2_approx(fmaf(s[4 * j + 3], scale, minus[1]));
      sum_a += s[4 * j] + s[4 * j + 1];
      sum_b += s[4 * j + 2] + s[4 * j + 3];
    }
    sum[0] += sum_a;
    sum[1] += sum_b;
  }

  // Whether a weight of the warp's rows is large, or infinite, or NaN, of the packed weights of a step.
  template <int N> DEVICE bool overflows(const u32 (&weights)[N]) const {
    u32 bits[2] = {};
#pragma unroll
    for (int i = 0; i < N; i++) bits[i % 2] = larger_of(bits[i % 2], weights[i]);
    return __any_sync(~0u, has_large(bits[0] & watched[0]) || has_large(bits[1] & watched[1]));
  }

  // Raises the references of rows with a large weight: of the step's weights, which are not packed, and of all sums.
  template <int N> DEVICE void raise(float (&s)[SCORES], float (&out)[N], float scale) {
    float most[2];
    find_most(s, most);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int exponent = (__float_as_int(most[r]) >> 23) - 127;
      // Not more than a normal number has.
      const float powers = exponent < LIMIT ? 0.f : fminf(exponent + HEADROOM, 126.f);
      // What is left of them where `minus` is large.
      const float lowered = minus[r] - powers;
      factor[r] = powers > 0.f ? exp2_approx(lowered - minus[r]) : 1.f;
      minus[r] = lowered;
      reference[r] += powers / scale;
      sum[r] *= factor[r];
    }
#pragma unroll
    for (int i = 0; i < SCORES; i++) s[i] *= factor[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < N; i++) out[i] *= factor[i / 2 % 2];
  }

  // Gives rows a reference that have none and see something now. What such a row does not see has no weight until then.
  DEVICE void refer(const float (&s)[SCORES], float scale) {
    float most[2];
    find_most(s, most);
    bool has_all = true;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (reference[r] == NEG_INF && most[r] > unseen() && (!BIAS || most[r] * scale > -HIDDEN_POWERS)) {
        reference[r] = most[r];
        minus[r] = fmaf(-most[r], scale, -HEADROOM);
      }
      // One with a NaN for its sum needs none.
      has_all = has_all && (watched[r] == 0 || reference[r] != NEG_INF || sum[r] != sum[r]);
    }
    settled = __all_sync(~0u, has_all);
  }

  // The largest of each row's scores or weights, of all lanes.
  static DEVICE void find_most(const float (&s)[SCORES], float (&most)[2]) {
    most[0] = s[0], most[1] = s[2];
#pragma unroll
    for (int j = 0; j < SCORES / 4; j++) {
      most[0] = fmaxf(most[0], fmaxf(s[4 * j], s[4 * j + 1]));
      most[1] = fmaxf(most[1], fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2)
#pragma unroll
      for (int r = 0; r < 2; r++) most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], mask));
  }

  DEVICE float logsumexp(int r) const { return (log2_approx(sum[r]) - minus[r]) * LN_2; }

  // Adds up the columns of the other lanes.
  DEVICE void finish() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
  }

  // Of a row that sees nothing.
  DEVICE void forget(int r) {
    reference[r] = NEG_INF;
    minus[r] = sum[r] = 0.f;
  }
};
