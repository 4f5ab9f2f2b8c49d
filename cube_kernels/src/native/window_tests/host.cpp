// Reads rows of axes and prints what `window.cuh`, which comes before, says of them.

#include <cstdio>

struct Axis { int kernel, stride; };

template <bool Causal, bool Strided> Window window(bool is_key, const Axis& axis, int row, int queries, int keys) {
  return is_key ? window_of_key<Causal, Strided>(axis, row, keys, queries)
                : window_of_query<Causal, Strided>(axis, row, queries, keys);
}

int main() {
  Axis axis;
  int is_key, is_causal, is_strided, row, queries, keys;
  while (std::scanf("%d%d%d%d%d%d%d%d", &is_key, &is_causal, &is_strided, &axis.kernel, &axis.stride, &queries, &keys, &row) == 8) {
    const auto of = is_causal ? is_strided ? window<true, true> : window<true, false>
                              : is_strided ? window<false, true> : window<false, false>;
    const Window seen = of(is_key, axis, row, queries, keys);
    std::printf("%d %d\n", seen.start, seen.end);
  }
}
