// What the new token brings: its keys and values go behind those that are there, and the compressed block that is complete with it is the mean
// of its tokens. Memory begins where they belong.

struct AppendParams {
  const u16* from[2][3];  // keys and values for the list, for the window, and for what is not compressed yet; null where there are none
  u16* to[2][3];
  const u16* tokens[2];   // of the block that is complete, of keys and of values
  u16* blocks[2];
  View of_from[2][3], of_to[2][3], of_tokens[2], of_blocks[2];
  int block;              // its tokens; 0 where none is complete
  int unused;
};

// Of a pair, by one CTA, which sees what it has written.
DEVICE void append(const AppendParams& params, int batch, int head) {
  constexpr int CHUNKS = (DIM + DIM_V) / 8;
  for (int i = threadIdx.x; i < 3 * CHUNKS; i += THREADS) {
    const int set = i / CHUNKS, chunk = i % CHUNKS, is_value = chunk >= DIM / 8, column = (is_value ? chunk - DIM / 8 : chunk) * 8;
    if (params.from[is_value][set] == nullptr) continue;
    const uint4 some = *(const uint4*)(of_pair(params.from[is_value][set], params.of_from[is_value][set], batch, head) + column);
    *(uint4*)(of_pair(params.to[is_value][set], params.of_to[is_value][set], batch, head) + column) = some;
  }
  if (params.block == 0) return;
  __syncthreads();
  for (int i = threadIdx.x; i < (DIM + DIM_V) / 2; i += THREADS) {
    const int is_value = i >= DIM / 2, column = 2 * (is_value ? i - DIM / 2 : i);
    const u16* const from = of_pair(params.tokens[is_value], params.of_tokens[is_value], batch, head) + column;
    const i64 stride = params.of_tokens[is_value].token;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 16
    for (int token = 0; token < params.block; token++) {
      const u32 both = *(const u32*)(from + token * stride);
      sum.x += unpack((u16)both), sum.y += unpack((u16)(both >> 16));
    }
    *(u32*)(of_pair(params.blocks[is_value], params.of_blocks[is_value], batch, head) + column) = pack(sum.x / (float)params.block, sum.y / (float)params.block);
  }
  __syncthreads();
}
