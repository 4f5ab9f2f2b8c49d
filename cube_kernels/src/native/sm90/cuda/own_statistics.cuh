// A kernel that keeps queries makes their statistics itself, in place of delta.cu, and leaves them to the kernels for keys (MAKES_STATISTICS):
// rows of the output come into shared memory beside those of its gradient. Sums are those of delta.cu to the bit.

#if MAKES_STATISTICS
static_assert(!INVERSE && !PACKED && !LISTED && DIM_V <= 128, "rows are queries, of which each has one place in the statistics");

struct Results {
  const float *lse, *dlse;       // [batch, queries, heads]
  float untrusted;
  int padding;
};

// Of the two rows that a quad has.
struct OwnStatistics {
  float product[2];              // rowsum(dout * out)
  float lse[2], dlse[2];         // on their way

  // `gradient` and `out` are where the warpgroup's rows begin in shared memory.
  DEVICE void start(const Params& params, const Results& results, const Tile& tile, u32 gradient, u32 out, int warp, int lane, const int (&at)[2][PLACE]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      // A query that is there is read where one is not, so that no load waits for a branch.
      const i64 row = row_exists(tile, at[r]) ? row_index(params.space, tile, at[r]) : 0;
      lse[r] = results.lse[row];
      dlse[r] = results.dlse[row];
    }
    constexpr int PIECES = DIM_V > 64 ? 4 : DIM_V > 32 ? 2 : 1;  // of eight elements, for a lane
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sums[PIECES];
#pragma unroll
      for (int i = 0; i < PIECES; i++) {
        const int piece = 4 * i + lane % 4, chunk = piece / (SWIZZLE / 16), row = warp * 16 + lane / 4 + 8 * r;
        const int turned = piece % (SWIZZLE / 16) ^ row / (128 / SWIZZLE) & SWIZZLE / 16 - 1;
        const u32 place = (chunk * 64 + row) * SWIZZLE + (turned << 4);
        sums[i] = 8 * piece < DIM_V ? dot(load_words(out + place), load_words(gradient + place)) : 0.f;
      }
#pragma unroll
      for (int half = PIECES / 2; half; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
#pragma unroll
      for (int mask = 2; mask; mask >>= 1) sums[0] += __shfl_xor_sync(~0u, sums[0], mask);
      product[r] = sums[0];
    }
  }

  // Of a row, which are written.
  DEVICE float4 finish(const Params& params, const Results& results, const Tile& tile, int lane, const int (&at)[PLACE], int r) const {
    const float4 statistics = query_statistics(lse[r], dlse[r], product[r], results.untrusted);
    if (lane % 4 == 0) statistics_of(params, tile, tile.head, at) = statistics;
    return statistics;
  }
};
#else
struct Results {};
#endif
