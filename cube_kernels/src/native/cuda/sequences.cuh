// Sequences of a packed batch, whose work is numbered one sequence after the other.

// The sequence of a number; `first` has the first number of each of `count`. The number becomes that among the sequence's own.
DEVICE int find_sequence(const int* first, int count, int& number) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= number) low = middle;
    else high = middle;
  }
  number -= first[low];
  return low;
}
