// What the backward kernels need of each query besides its vectors, four floats of it:
//
//   logsumexp  in base 2, +inf for a query that sees nothing, whose weights are then zero: for rows that are computed again
//   delta      rowsum(dout * out) - dlse, or 0 for a query that sees nothing, whatever its gradients are
//   logsumexp  the same, but NaN where it is `untrusted` or more: for all others
//   delta      the same: each reader has a pair, and TMA begins its boxes at multiples of 16 bytes
//
// Scores beyond 2^24 may come through one-hot masks, see mask.cuh. A logsumexp of such scores is not handed on: the rows
// that meet it become NaN and are computed again. Where a query's seen scores are below 2^23 and its logsumexp is
// trusted, an unseen one that comes through as 2^24 or more weighs exp2(scale_log2 * 2^23), infinitely much for scales from
// 1.1e-5 on, so that its row is computed again as well.
//
// `[batch, heads, queries, 4]`, the queries in the order of their dilation groups, `pitch` places to a group
// along each axis, so that the queries of a tile are a box of it. Places without a query hold zeros.

DEVICE float4 query_statistics(float lse, float dlse, float product, float untrusted) {
  const bool is_blind = lse == NEG_INF;
  const float base_2 = is_blind ? -NEG_INF : lse * LOG2_E;
  const bool is_trusted = is_blind || fabsf(base_2) < untrusted;
  const float delta = is_blind ? 0.f : product - dlse;
  return make_float4(base_2, delta, is_trusted ? base_2 : __int_as_float(0x7fc00000), delta);
}

DEVICE void unpack_pair(u32 bits, float (&values)[2]) {
  values[0] = unpack((u16)(bits & 0xFFFF));
  values[1] = unpack((u16)(bits >> 16));
}

// Of eight elements each.
DEVICE float dot(const uint4& a, const uint4& b) {
  const u32 words[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float left[2], right[2];
    unpack_pair(words[0][i], left);
    unpack_pair(words[1][i], right);
    sum = fmaf(left[0], right[0], fmaf(left[1], right[1], sum));
  }
  return sum;
}
