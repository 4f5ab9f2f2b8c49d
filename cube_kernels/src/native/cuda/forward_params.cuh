struct Params {
  void* out;
  float* lse;
  const u16 *query, *key, *value, *more_key, *more_value;
  i64 query_strides[5], key_strides[5], value_strides[5];  // elements: batch, z, y, x, head
  i64 more_key_strides[3], more_value_strides[3];          // batch, token, head
  Space space;
  int group_size;                // query heads to a key head
  int additional;                // tokens that every query sees
  float scale_log2;              // scale * log2(e)
  int shift[3];                  // of the queries along each axis, see window.cuh; with ORIGIN
  Bias bias;
#if LISTED
  Listed listed;
#endif
};

struct Maps {
  const TensorMap *query, *key, *value, *more_key, *more_value;
  static constexpr int COUNT = 5;
  // Without additional tokens.
  DEVICE static constexpr bool is_used(int i) { return i < 3; }
  DEVICE static Maps at(const TensorMap* first) { return {first, first + 1, first + 2, first + 3, first + 4}; }
};
