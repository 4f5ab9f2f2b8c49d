// The online softmax of a row of scores, which is a thread's. Compile-time parameter EMULATE: of 16 exponentials that many, an even
// number, are polynomials, because a multiprocessor has 16 a cycle and products of 128 x 128 x 16 take 64 cycles.

constexpr float RESCALE_ABOVE = 8.f;  // log2 by which a maximum may grow before sums are rescaled

// 2^x of two x below 127 without the special function unit: an integer, and a polynomial of a fraction f, which is right to 2.9e-6. That
// leaves a logsumexp right to 1e-5. Nothing is below 2^-126.
DEVICE void exp2_polynomials(float& x, float& y) {
  constexpr float c1 = 0.69304484f, c2 = 0.24128027f, c3 = 0.052242338f, c4 = 0.013426769f;
  const float shift = 12582912.f;  // 2^23 + 2^22: the integer is in the last bits of the sum
  x = fmaxf(x, -126.f), y = fmaxf(y, -126.f);
  float sum_x, sum_y, whole_x, whole_y, p, q;
  add2_down(sum_x, sum_y, x, shift, y, shift);
  add2(whole_x, whole_y, sum_x, -shift, sum_y, -shift);
  fma2(x, y, whole_x, -1.f, whole_y, -1.f, x, y);
  fma2(p, q, x, c4, y, c4, c3, c3);
  fma2(p, q, x, p, y, q, c2, c2);
  fma2(p, q, x, p, y, q, c1, c1);
  fma2(p, q, x, p, y, q, 1.f, 1.f);
  x = __int_as_float(__float_as_int(p) + (__float_as_int(sum_x) << 23));
  y = __int_as_float(__float_as_int(q) + (__float_as_int(sum_y) << 23));
}

struct Softmax {
  float max, sum;                // of raw scores, nearly; of exp2(scale_log2 * (score - max))
  float bias;                    // of the exponents of a step

  DEVICE void start() { max = NEG_INF, sum = 0.f; }

  // The largest of these scores and of `most`; NaN if any is.
  template <int N> DEVICE float largest(const float (&x)[N], float most) const {
    float a = max3(x[0], x[1], most), b = max2(x[2], x[3]);
#pragma unroll
    for (int j = 4; j < N; j += 4) a = max3(a, x[j], x[j + 1]), b = max3(b, x[j + 2], x[j + 3]);
    return max2(a, b);
  }

  // Of a step whose largest score is `most`, `max` included: gives what older sums are to be multiplied with. `max` lags behind by
  // no more than RESCALE_ABOVE, so that weights are at most 2^8 and most steps rescale nothing.
  DEVICE float step(float most, float scale) {
    // Of a row that has seen nothing yet.
    float base = most == NEG_INF ? 0.f : most;
    // What is not finite stays in the sum, so that the row is computed again: polynomials have made a number of it.
    sum = fmaf(base, 0.f, sum);
    float rescale = 1.f;
    const float growth = (max - base) * scale;
    if (growth < -RESCALE_ABOVE) rescale = exp2_approx(growth), max = most;
    else base = max;
    bias = -base * scale;
    sum *= rescale;
    return rescale;
  }

  // Turns scores into exponents.
  DEVICE void shift(float (&x)[64], float scale) const {
#pragma unroll
    for (int j = 0; j < 64; j += 2) fma2(x[j], x[j + 1], x[j], scale, x[j + 1], scale, bias, bias);
  }

  // Turns 32 exponents into weights, and packs them.
  DEVICE void weigh(float* x, u32 (&weights)[16]) {
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
      if (j % 16 >= 16 - EMULATE) exp2_polynomials(x[j], x[j + 1]);
      else x[j] = exp2_approx(x[j]), x[j + 1] = exp2_approx(x[j + 1]);
      weights[j / 2] = pack(x[j], x[j + 1]);
    }
  }

  // Adds up 64 weights.
  DEVICE void add(const float (&x)[64]) {
    float even = 0.f, odd = 0.f;
#pragma unroll
    for (int j = 0; j < 64; j += 2) add2(even, odd, even, x[j], odd, x[j + 1]);
    sum += even + odd;
  }
};
