// From lists of blocks to lists of the entries that name each block, in their order. A warp has a chunk of the entries of a sample and a
// head that has lists, of which it takes 32 at a time: lanes that name the same block find each other. It counts what its chunk names;
// counts become those of the chunks before, and totals become starts; then it walks again, and writes each entry to its place.
//
// Shared memory of those who walk: four bytes for each block; of those who add up: a number of each thread, or of each warp.

struct Params {
  u32* starts;                   // [pairs, blocks + 1]
  u32* items;                    // [pairs, listed]: entries, divided
  u32* counts;                   // [pairs, chunks, blocks]
  const int* lists;              // [batch, queries, heads, entries]
  int queries, heads, entries;   // lists of a head, heads that have lists
  int blocks;
  int chunks, chunk;             // of a pair, entries of one
  int divisor;                   // of what is written: 1 for entries, `entries` for queries
  int padding;
};

extern __shared__ __align__(1024) u8 memory[];

// The entries of a chunk, 32 at a time: `visit(entry, block, lanes)` with the lanes that name the same block, which is -1 for none.
template <class Visit> DEVICE void walk(const Params& params, int pair, int chunk, Visit visit) {
  const int lane = threadIdx.x, listed = params.queries * params.entries, batch = pair / params.heads, head = pair % params.heads;
  const int first = chunk * params.chunk, end = first + params.chunk < listed ? first + params.chunk : listed;
  auto block_of = [&](int entry) {
    if (entry >= end) return -1;
    const i64 list = ((i64)batch * params.queries + entry / params.entries) * params.heads + head;
    const int block = params.lists[list * params.entries + entry % params.entries];
    return (u32)block < (u32)params.blocks ? block : -1;
  };
  int next = block_of(first + lane);
#pragma unroll 1
  for (int entry = first + lane; entry - lane < end; entry += 32) {
    const int block = next;
    next = block_of(entry + 32);
    visit(entry, block, __match_any_sync(~0u, block));
    __syncwarp();
  }
}

extern "C" __global__ void __launch_bounds__(32) attention_count(const __grid_constant__ Params params) {
  u32* const own = (u32*)memory;
  const int lane = threadIdx.x, pair = blockIdx.x / params.chunks, chunk = blockIdx.x % params.chunks;
  for (int block = lane; block < params.blocks; block += 32) own[block] = 0;
  __syncwarp();
  walk(params, pair, chunk, [&](int, int block, u32 lanes) {
    if (block >= 0 && (lanes & ((1u << lane) - 1)) == 0) own[block] += __popc(lanes);
  });
  u32* const to = params.counts + (i64)blockIdx.x * params.blocks;
  for (int block = lane; block < params.blocks; block += 32) to[block] = own[block];
}

// Counts of 32 blocks become those of the chunks before, and `starts` gets how many entries name each. A warp has some of the chunks.
extern "C" __global__ void __launch_bounds__(1024) attention_before(const __grid_constant__ Params params) {
  constexpr int CHUNKS = 512 / 32;  // of a warp: a pair has 512 at most, as in inverse.rs
  u32(&of_warps)[32][32] = *(u32(*)[32][32])memory;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, parts = (params.blocks + 31) / 32;
  const int pair = blockIdx.x / parts, block = blockIdx.x % parts * 32 + lane, first = warp * CHUNKS;
  u32* const counts = params.counts + ((i64)pair * params.chunks + first) * params.blocks + block;
  u32 some[CHUNKS], total = 0;
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) some[i] = first + i < params.chunks && block < params.blocks ? counts[(i64)i * params.blocks] : 0u;
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) total += some[i];
  of_warps[warp][lane] = total;
  __syncthreads();
  u32 before = 0;
#pragma unroll 8
  for (int w = 0; w < 32; w++) before += w < warp ? of_warps[w][lane] : 0u;
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) {
    if (first + i < params.chunks && block < params.blocks) counts[(i64)i * params.blocks] = before;
    before += some[i];
  }
  if (warp == 31 && block < params.blocks) params.starts[(i64)pair * (params.blocks + 1) + block + 1] = before;
}

// How many entries name each block becomes where those of the next begin.
extern "C" __global__ void __launch_bounds__(1024) attention_starts(const __grid_constant__ Params params) {
  u32* const of_warps = (u32*)memory;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32* const starts = params.starts + (i64)blockIdx.x * (params.blocks + 1);
  u32 before = 0;
#pragma unroll 1
  for (int base = 0; base < params.blocks; base += 1024) {
    const int block = base + threadIdx.x;
    u32 sum = block < params.blocks ? starts[block + 1] : 0u;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const u32 other = __shfl_sync(~0u, sum, (lane - distance) & 31);
      if (lane >= distance) sum += other;
    }
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    sum += before;
#pragma unroll 1
    for (int w = 0; w < 32; w++) {
      const u32 more = of_warps[w];
      sum += w < warp ? more : 0u;
      before += more;
    }
    if (block < params.blocks) starts[block + 1] = sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) starts[0] = 0;
}

extern "C" __global__ void __launch_bounds__(32) attention_scatter(const __grid_constant__ Params params) {
  u32* const own = (u32*)memory;
  const int lane = threadIdx.x, pair = blockIdx.x / params.chunks, chunk = blockIdx.x % params.chunks;
  const u32* const counts = params.counts + (i64)blockIdx.x * params.blocks;
  const u32* const starts = params.starts + (i64)pair * (params.blocks + 1);
  for (int block = lane; block < params.blocks; block += 32) own[block] = starts[block] + counts[block];
  __syncwarp();
  u32* const items = params.items + (i64)pair * params.queries * params.entries;
  walk(params, pair, chunk, [&](int entry, int block, u32 lanes) {
    const u32 before = lanes & ((1u << lane) - 1);
    const u32 at = block >= 0 ? own[block] : 0u;
    __syncwarp();
    if (block < 0) return;
    items[at + __popc(before)] = entry / params.divisor;
    if (before == 0) own[block] = at + __popc(lanes);
  });
}
