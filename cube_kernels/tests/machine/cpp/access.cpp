// Every load and store of the kernel. It is compiled with -fsanitize=thread, which has the compiler call the functions at the end of
// this file with each; the sanitizer's own library is not linked. An access is one of
//
//   the thread's stack   where registers are: an operand of a product or tcgen05.ld in flight must not be touched
//   shared memory        checked by the clocks
//   global memory        has to be in a buffer of the launch, and in one that is an output to be written
#include "machine.h"


alignas(1024) u8 memory[machine::SHARED_BYTES];  // as kernels declare it
extern "C" {
extern u8 __start_machine_static[] __attribute__((weak));
extern u8 __stop_machine_static[] __attribute__((weak));
extern u8 __executable_start[] __attribute__((weak));
extern u8 _end[] __attribute__((weak));
}

namespace machine {

std::vector<Buffer> buffers;
size_t launch_buffers;

u8* at_shared(u32 address) { return memory + (address - SHARED); }
void shared_in_range(u32 address, u32 bytes) {
  if (address < SHARED || address - SHARED + bytes > launch.shared_bytes)
    fault("%u bytes at %d of shared memory, of which the CTA has %u", bytes, (int)(address - SHARED), launch.shared_bytes);
}
void reset_static() {
  const size_t bytes = __stop_machine_static - __start_machine_static;
  if (bytes > STATIC_BYTES) fault("%zu bytes of arrays of functions", bytes);
  memset(__start_machine_static, JUNK, bytes);
  memset(memory, JUNK, sizeof memory);
}

void check_global(const u8* at, size_t bytes, bool writes, bool has_waited, const char* who) {
  for (const Buffer& b : buffers) {
    if ((size_t)(at - b.at) >= b.bytes) continue;
    if ((size_t)(at - b.at) + bytes > b.bytes) fault("%s %s %zu bytes at %zu of a buffer of %zu", who, writes ? "writes" : "reads", bytes, (size_t)(at - b.at), b.bytes);
    if (!writes && b.is_awaited && !has_waited) fault("%s reads what the launch ahead writes, and has not waited for it", who);
    if (writes && !b.is_output) fault("%s writes to a buffer that is no output, at %zu", who, (size_t)(at - b.at));
    return;
  }
  fault("%s %s memory that is in no buffer", who, writes ? "writes" : "reads");
}

static size_t word_of(const void* at, u32 words) {
  const size_t offset = (const u8*)at - self().stack;
  if (offset + 4 * words > STACK || offset % 4) fault("operands of a product are not in the thread's registers");
  return offset / 4;
}
void use_stack(const void* at, u32 words, u32 group, bool writes) {
  Fiber& f = self();
  const size_t word = word_of(at, words);
  u8* uses = writes ? f.writes : f.reads;
  for (u32 i = 0; i < words; i++) uses[word + i]++;
  f.uses.push_back({(u32*)at, words, group, writes});
}
void leave_stack(u32 up_to) {
  Fiber& f = self();
  size_t kept = 0;
  for (const Use& use : f.uses) {
    if (use.group > up_to) {
      f.uses[kept++] = use;
      continue;
    }
    const size_t word = word_of(use.at, use.words);
    for (u32 i = 0; i < use.words; i++) (use.writes ? f.writes : f.reads)[word + i]--;
  }
  f.uses.resize(kept);
}

static inline void on_stack(Fiber& f, size_t offset, size_t bytes, bool writes) {
  for (size_t word = offset / 4, end = (offset + bytes + 3) / 4; word < end; word++) {
    if (f.writes[word]) fault("a register that a product or a load in flight writes is %s", writes ? "written" : "read");
    if (!writes) continue;
    if (f.reads[word]) fault("a register that a product in flight reads is written");
    f.written[word] = f.fences;
  }
}
static inline void on_access(const void* where, size_t bytes, bool writes) {
  // What the kernel's file does before there are threads.
  if (fibers.empty()) return;
  const u8* at = (const u8*)where;
  Fiber& f = self();
  const size_t offset = at - f.stack;
  if (offset < STACK) return on_stack(f, offset, bytes, writes);
  const bool dynamic = (size_t)(at - memory) < SHARED_BYTES;
  if (dynamic || (at >= __start_machine_static && at < __stop_machine_static)) {
    const u32 address = dynamic ? SHARED + (u32)(at - memory) : STATIC + (u32)(at - __start_machine_static);
    if (dynamic) shared_in_range(address, (u32)bytes);
    return check_shared(address, (u32)bytes, me, epoch_of(me), {f.clock.seen, f.clock.over, f.clock.proxied}, writes, false, "the thread");
  }
  // Tables of the compiler's.
  if (!writes && at >= __executable_start && at < _end) return;
  check_global(at, bytes, writes, f.has_waited, "the thread");
}

}  // namespace machine

using machine::on_access;

extern "C" {

// Of writes before it nothing is known: what launches ahead still read is not.
void m_launch_wait() { machine::self().has_waited = true; }
// The next launch may read what the one ahead has written without a wait of its own.
void m_launch_next() {
  for (const machine::Buffer& b : machine::buffers)
    if (b.is_awaited && !machine::self().has_waited) machine::fault("the next launch begins before the one ahead of this one has ended");
}

u32 m_shared_address(const void* pointer) { return machine::SHARED + (u32)((const u8*)pointer - memory); }
u8* m_shared(u32 address, u32 bytes, int) {
  machine::shared_in_range(address, bytes);
  if (address % bytes) machine::fault("%u bytes at %u of shared memory", bytes, address - machine::SHARED);
  return machine::at_shared(address);
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define SIZE(bytes)                                                                  \
  void __tsan_read##bytes(void* at) { on_access(at, bytes, false); }                 \
  void __tsan_write##bytes(void* at) { on_access(at, bytes, true); }                 \
  void __tsan_read_write##bytes(void* at) { on_access(at, bytes, false), on_access(at, bytes, true); } \
  void __tsan_unaligned_read##bytes(void* at) { on_access(at, bytes, false); }       \
  void __tsan_unaligned_write##bytes(void* at) { on_access(at, bytes, true); }       \
  void __tsan_unaligned_read_write##bytes(void* at) { on_access(at, bytes, false), on_access(at, bytes, true); }
SIZE(1) SIZE(2) SIZE(4) SIZE(8) SIZE(16)
#undef SIZE
void __tsan_read_range(void* at, size_t bytes) { on_access(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { on_access(at, bytes, true); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  on_access(from, bytes, false), on_access(to, bytes, true);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  on_access(from, bytes, false), on_access(to, bytes, true);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  on_access(to, bytes, true);
  return memset(to, value, bytes);
}

}
