// Reads rows of axes and prints what `window.cuh`, which comes before, says of them.

#include <cstdio>

struct Axis { int kernel, stride; };

template <bool Causal, bool Strided, bool Shifted>
Window window(bool is_key, const Axis& axis, int shift, int row, int queries, int keys) {
  return is_key ? window_of_key<Causal, Strided, Shifted>(axis, shift, row, keys, queries)
                : window_of_query<Causal, Strided, Shifted>(axis, shift, row, queries, keys);
}

template <bool Shifted> auto function(bool is_causal, bool is_strided) {
  return is_causal ? is_strided ? window<true, true, Shifted> : window<true, false, Shifted>
                   : is_strided ? window<false, true, Shifted> : window<false, false, Shifted>;
}

int main() {
  Axis axis;
  int is_key, is_causal, is_strided, is_shifted, shift, row, queries, keys;
  while (std::scanf("%d%d%d%d%d%d%d%d%d%d", &is_key, &is_causal, &is_strided, &is_shifted, &axis.kernel, &axis.stride,
                    &shift, &queries, &keys, &row) == 10) {
    const auto of = is_shifted ? function<true>(is_causal, is_strided) : function<false>(is_causal, is_strided);
    const Window seen = of(is_key, axis, shift, row, queries, keys);
    std::printf("%d %d\n", seen.start, seen.end);
  }
}
