// Which keys a query sees along one axis, and which queries see a key: half-open intervals of positions inside a
// dilation group. window.rs states the semantics; window_tests.rs compiles this file for the host and holds it to
// them. Nothing of CUDA is used: whoever includes it defines DEVICE. An Axis has a `kernel` and a `stride`. Where
// queries are Shifted, the query at position i stands at i + shift among the keys: in front of the first of them, too.

DEVICE int min_(int a, int b) { return a < b ? a : b; }
DEVICE int max_(int a, int b) { return a > b ? a : b; }

struct Window { int start, end; };

// The keys that the query at position `row` sees, which is clamped into its group. Starts and ends never decrease.
template <bool Causal, bool Strided, bool Shifted, class Axis>
DEVICE Window window_of_query(const Axis& axis, int shift, int row, int queries, int keys) {
  row = min_(row, queries - 1);
  // In front of the keys, where a causal query sees nothing: 0..0.
  if (Shifted) row = max_(row + shift, -1);
  const int at = Shifted ? max_(row, 0) : row;
  const int first = Strided ? at / axis.stride * axis.stride : at;
  Window w;
  if (Causal) {
    const int leader = min_(first + axis.stride - 1, keys - 1);
    w.start = max_(leader - axis.kernel + 1, 0);
    w.end = min_(row + 1, keys);
  } else {
    const int leader = min_(first + axis.stride / 2, keys - 1);
    w.start = min_(max_(leader - axis.kernel / 2, 0), keys - axis.kernel);
    w.end = w.start + axis.kernel;
  }
  return w;
}

// First position of the first stride group whose leader, `offset` behind its first member, is at `leader`
// or later.
template <bool Strided, class Axis> DEVICE int first_with_leader(const Axis& axis, int leader, int offset) {
  leader = max_(leader - offset, 0);
  return Strided ? (leader + axis.stride - 1) / axis.stride * axis.stride : leader;
}

// The queries that see the key at position `row`, which is clamped into its group. Empty where the end
// is not behind the start: of causal attention with fewer queries than keys nobody sees the last keys.
template <bool Causal, bool Strided, bool Shifted, class Axis>
DEVICE Window window_of_key(const Axis& axis, int shift, int row, int keys, int queries) {
  row = min_(row, keys - 1);
  const int behind = axis.kernel / 2, half = axis.stride / 2;
  Window w = {0, Shifted ? queries + shift : queries};
  if (Causal) {
    w.start = row;
    if (row + axis.kernel < keys) w.end = first_with_leader<Strided>(axis, row + axis.kernel, axis.stride - 1);
  } else {
    if (row >= axis.kernel) w.start = first_with_leader<Strided>(axis, row + 1 - axis.kernel + behind, half);
    if (row + axis.kernel < keys) w.end = first_with_leader<Strided>(axis, row + 1 + behind, half);
  }
  // From where queries stand to their positions.
  if (Shifted) w.start = max_(w.start - shift, 0), w.end = max_(w.end - shift, 0);
  w.start = min_(w.start, queries);
  w.end = min_(w.end, queries);
  return w;
}
