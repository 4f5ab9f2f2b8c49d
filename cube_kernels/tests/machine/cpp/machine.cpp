// `kernel FOLDER`: runs the launch that the folder's file `launch` describes, and writes its outputs back.
//
// `launch` is words of eight bytes: CTAs, threads, bytes of shared memory, policy, seed, buffers, arguments; for each buffer, which is the
// file of its number, whether it is an output, and whether the launch ahead, which may not have ended yet, wrote it; for each buffer the number of its contents, and these, as arguments are; for each argument 0, its words and their number, and the words that become addresses as
// (word, buffer, byte); or 1 and a tensor map: buffer, byte, bytes of an element and of the swizzle, sizes, strides, box, steps.
// Ends with 3 at the first fault, which it prints.
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

using namespace machine;

extern "C" {
// Of the kernel's file.
extern const char machine_entry[];
extern const unsigned machine_ctas;
void machine_kernel(void** arguments);
unsigned machine_sizes(unsigned* sizes);
}
namespace machine { extern unsigned long long ordered_pairs; }

static std::string folder;
static std::vector<u8> contents(const std::string& name) {
  FILE* file = fopen((folder + "/" + name).c_str(), "rb");
  if (!file) fault("no file %s", name.c_str());
  std::vector<u8> bytes;
  u8 some[65536];
  for (size_t n; (n = fread(some, 1, sizeof some, file)) > 0;) bytes.insert(bytes.end(), some, some + n);
  fclose(file);
  return bytes;
}

struct Words {
  std::vector<u64> all;
  size_t at = 0;
  u64 next() {
    if (at == all.size()) fault("the launch is cut off");
    return all[at++];
  }
};

// As the driver places buffers, so that an address that is not a multiple of 256 is the kernel's doing.
static u8* placed(const std::vector<u8>& bytes) {
  u8* at = (u8*)aligned_alloc(256, (bytes.size() + 511) / 256 * 256);
  memcpy(at, bytes.data(), bytes.size());
  return at;
}
static u8* address(u64 buffer, u64 byte) { return buffers[buffer].at + byte; }

static std::vector<u64> structure(Words& words) {
  std::vector<u64> value(words.next());
  for (u64& word : value) word = words.next();
  for (u64 count = words.next(); count > 0; count--) {
    const u64 word = words.next(), buffer = words.next(), byte = words.next();
    value[word] = (u64)address(buffer, byte);
  }
  return value;
}
static TensorMap tensor_map(Words& words) {
  TensorMap map = {};
  const u64 buffer = words.next(), byte = words.next();
  map.base = address(buffer, byte);
  map.element = (u32)words.next(), map.swizzle = (u32)words.next();
  for (u64& x : map.sizes) x = words.next();
  for (u64& x : map.strides) x = words.next();
  for (u32& x : map.box) x = (u32)words.next();
  for (u32& x : map.steps) x = (u32)words.next();
  return map;
}

int main(int, char** argv) {
  folder = argv[1];
  launch.name = machine_entry;
  Words words;
  const std::vector<u8> bytes = contents("launch");
  words.all.resize(bytes.size() / 8);
  memcpy(words.all.data(), bytes.data(), words.all.size() * 8);
  launch.grid = (u32)words.next(), launch.block = (u32)words.next(), launch.shared_bytes = (u32)words.next();
  launch.policy = (Policy)words.next(), launch.seed = (u32)words.next(), launch.ctas = machine_ctas;
  const u64 buffer_count = words.next(), argument_count = words.next();
  if (launch.block % WARP || launch.block > 1024) fault("%u threads", launch.block);
  if (launch.shared_bytes > SHARED_BYTES || (launch.shared_bytes + SHARED) * launch.ctas > SHARED_BYTES + SHARED) fault("%u CTAs of %u bytes of shared memory", launch.ctas, launch.shared_bytes);
  for (u64 i = 0; i < buffer_count; i++) {
    const std::vector<u8> values = contents(std::to_string(i));
    const bool is_output = words.next() != 0, is_awaited = words.next() != 0;
    buffers.push_back({placed(values), values.size(), is_output, is_awaited});
  }
  launch_buffers = buffers.size();
  for (u64 i = 0; i < buffer_count; i++) {
    size_t byte = 0;
    for (u64 count = words.next(); count > 0; count--) {
      byte = (byte + 127) / 128 * 128;
      std::vector<u8> value(sizeof(TensorMap));
      if (words.next()) {
        const TensorMap map = tensor_map(words);
        memcpy(value.data(), &map, sizeof map);
      } else {
        const std::vector<u64> all = structure(words);
        value.assign((const u8*)all.data(), (const u8*)(all.data() + all.size()));
      }
      if (byte + value.size() > buffers[i].bytes) fault("contents of buffer %llu do not fit into it", i);
      memcpy(buffers[i].at + byte, value.data(), value.size());
      byte += value.size();
    }
  }
  std::vector<void*> arguments;
  std::vector<unsigned> sizes;
  for (u64 i = 0; i < argument_count; i++) {
    if (words.next()) {
      arguments.push_back(new TensorMap(tensor_map(words)));
      sizes.push_back(sizeof(TensorMap));
    } else {
      const std::vector<u64> value = structure(words);
      sizes.push_back((unsigned)(8 * value.size()));
      arguments.push_back(memcpy(aligned_alloc(64, (8 * value.size() + 63) / 64 * 64), value.data(), 8 * value.size()));
    }
  }
  unsigned expected[16];
  const unsigned count = machine_sizes(expected);
  if (count != sizes.size()) fault("%zu arguments, not %u", sizes.size(), count);
  for (unsigned i = 0; i < count; i++) {
    if (sizes[i] != expected[i]) fault("argument %u has %u bytes, and %u of the kernel's", i, sizes[i], expected[i]);
    // They are read like memory.
    buffers.push_back({(u8*)arguments[i], sizes[i], false, false});
  }
  buffers.push_back({(u8*)arguments.data(), sizeof(void*) * count, false, false});
  // Endless loops end by a signal, whatever else the host does.
  const rlimit seconds = {60, 60};
  setrlimit(RLIMIT_CPU, &seconds);
  dice.seed(launch.seed);
  for (block = 0; block < launch.grid; block++) run_cta(machine_kernel, arguments.data());
  for (u64 i = 0; i < buffer_count; i++) {
    if (!buffers[i].is_output) continue;
    FILE* file = fopen((folder + "/" + std::to_string(i)).c_str(), "wb");
    if (!file || fwrite(buffers[i].at, 1, buffers[i].bytes, file) != buffers[i].bytes || fclose(file)) fault("output %llu cannot be written", i);
  }
  if (ordered_pairs) printf("%llu pairs of products in order only by that of their issue\n", ordered_pairs);
}
