// The tensor cores' instructions, but for the products themselves, which source.rs writes: their operand lists are as
// long as their shapes are wide. And what is written around them.

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

// Descriptor of a matrix in shared memory with the 128-byte swizzle.
DEVICE u64 swizzled(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)(leading_bytes >> 4) << 16) | ((u64)(stride_bytes >> 4) << 32) | ((u64)1 << 62);
}
// Descriptor of a matrix in shared memory without swizzle.
DEVICE u64 unswizzled(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)(leading_bytes >> 4) << 16) | ((u64)(stride_bytes >> 4) << 32);
}

// Shifts that give zero from 32 on. Volatile: they stay behind the wait for the wgmmas that read the
// fragment they write; moved in front of it, they make ptxas serialise those.
DEVICE u32 shift_left(u32 value, u32 bits) { u32 r; asm volatile("shl.b32 %0, %1, %2;" : "=r"(r) : "r"(value), "r"(bits)); return r; }
DEVICE u32 shift_right(u32 value, u32 bits) { u32 r; asm volatile("shr.b32 %0, %1, %2;" : "=r"(r) : "r"(value), "r"(bits)); return r; }

DEVICE float load_float(u32 address) { float y; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(y) : "r"(address)); return y; }

// Named barriers between the consumer warpgroups.
DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
