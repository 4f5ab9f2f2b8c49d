// Finds the parts of key blocks. A CTA has a pair of a sample and a key head, each thread a run of its blocks.

struct Params {
  int4* parts;                   // [pairs, parts]: block, or -1 behind the last one, first entry, end, slot of its sums, or -1
  int* slots;                    // [pairs, blocks + 1]: the first slot of a block
  Inverse inverse;
};

extern __shared__ __align__(1024) u8 memory[];

extern "C" __global__ void __launch_bounds__(256) attention_parts(const __grid_constant__ Params params) {
  int* const sums = (int*)memory;
  const Inverse& of = params.inverse;
  const int pair = blockIdx.x, thread = threadIdx.x, each = (of.blocks + 255) / 256;
  const int first = thread * each, end = first + each < of.blocks ? first + each : of.blocks;
  int parts = 0, slots = 0;
  for (int block = first; block < end; block++) {
    const int more = parts_of(Visitors(of, pair, block).count);
    parts += more;
    slots += more > 1 ? more : 0;
  }
  sums[thread] = parts;
  sums[256 + thread] = slots;
  __syncthreads();
  int part = 0, slot = 0, all = 0;
  for (int i = 0; i < 256; i++) {
    if (i < thread) part += sums[i], slot += sums[256 + i];
    all += sums[i];
  }
  int* const of_blocks = params.slots + (i64)pair * (of.blocks + 1);
  int4* const table = params.parts + (i64)pair * of.parts;
  for (int block = first; block < end; block++) {
    const int count = Visitors(of, pair, block).count, more = parts_of(count);
    of_blocks[block] = slot;
    for (int i = 0; i < more; i++) {
      const int last = (i + 1) * PART_ENTRIES;
      table[part++] = make_int4(block, i * PART_ENTRIES, last < count ? last : count, more > 1 ? slot++ : -1);
    }
  }
  if (end == of.blocks) of_blocks[end] = slot;
  for (int i = all + thread; i < of.parts; i += 256) table[i] = make_int4(-1, 0, 0, -1);
}
