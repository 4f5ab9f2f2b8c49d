// The tensor cores' instructions, but for the products themselves, which source.rs writes: their operand lists are as
// long as their shapes are wide. And what is written around them. All assembly of the kernels is here, in tma.cuh and in
// device.cuh: `tests/machine` has others in their place, by which the kernels run on a CPU.

template <int N> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving reads of accumulators above the wait for them.
template <int N> DEVICE void pin(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(values[i])::"memory");
}

// Where the kernels' `memory` begins. Volatile: found again wherever descriptors are made of it, which then are in uniform registers, as wgmma takes them.
// From a register that holds it for long, they would be moved there one by one.
DEVICE u32 shared_base() { u32 y; asm volatile("mov.u32 %0, memory;" : "=r"(y)); return y; }

// A shift that gives zero from 32 on. Volatile: it stays behind the wait for the wgmmas that read the
// fragment they write; moved in front of it, they make ptxas serialise those.
DEVICE u32 shift_left(u32 value, u32 bits) { u32 r; asm volatile("shl.b32 %0, %1, %2;" : "=r"(r) : "r"(value), "r"(bits)); return r; }

DEVICE u32 load_word(u32 address) { u32 y; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(y) : "r"(address)); return y; }
DEVICE uint4 load_words(u32 address) {
  uint4 y;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w) : "r"(address));
  return y;
}
DEVICE float load_float(u32 address) { float y; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(y) : "r"(address)); return y; }

// Named barriers between the consumer warpgroups.
DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// The larger of each of two pairs of unsigned numbers in 16 bits.
DEVICE u32 max_pair(u32 a, u32 b) { u32 y; asm("max.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b)); return y; }

// The larger of two, or NaN if one is.
DEVICE float max2(float a, float b) { float y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
