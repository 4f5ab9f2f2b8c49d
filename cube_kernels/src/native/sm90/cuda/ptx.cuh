// The Hopper instructions the kernels use, one function each. No headers: NVRTC has none at run time.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define NEG_INF __int_as_float(0xff800000)
#define DEVICE __device__ __forceinline__

struct __align__(64) TensorMap { u64 opaque[16]; };

DEVICE int min_(int a, int b) { return a < b ? a : b; }
DEVICE int max_(int a, int b) { return a > b ? a : b; }

// The compiler keeps nothing of memory in registers across it.
DEVICE void memory_barrier() { asm volatile("" ::: "memory"); }

// A value that the compiler computes nothing from ahead of a loop, where it would take registers.
DEVICE int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A value that is the same in all lanes, where the compiler cannot see it. Branches around wgmma have to
// be uniform, or ptxas serialises.
DEVICE int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// ---- mbarriers: shared-memory barriers that count arrivals and bytes in flight

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}

// ---- named barriers between the consumer warpgroups

DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- TMA: a box of a five-dimensional tensor into shared memory

DEVICE void tma_load(u32 destination, const TensorMap* map, u32 barrier, int d, int x, int y, int z, int head) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      ::"r"(destination), "l"(map), "r"(barrier), "r"(d), "r"(x), "r"(y), "r"(z), "r"(head) : "memory");
}
DEVICE void tma_prefetch(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Makes ordinary writes to shared memory visible to TMA and the tensor cores.
DEVICE void shared_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- wgmma

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

// ---- arithmetic

DEVICE float load_float(u32 address) { float y; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(y) : "r"(address)); return y; }

DEVICE float exp2_approx(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float log2_approx(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// Shifts that give zero from 32 on. Volatile: they stay behind the wait for the wgmmas that read the
// fragment they write; moved in front of it, they make ptxas serialise those.
DEVICE u32 shift_left(u32 value, u32 bits) { u32 r; asm volatile("shl.b32 %0, %1, %2;" : "=r"(r) : "r"(value), "r"(bits)); return r; }
DEVICE u32 shift_right(u32 value, u32 bits) { u32 r; asm volatile("shr.b32 %0, %1, %2;" : "=r"(r) : "r"(value), "r"(bits)); return r; }

#if BF16
DEVICE u32 pack(float low, float high) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
DEVICE float unpack(u16 bits) { return __uint_as_float((u32)bits << 16); }
#else
DEVICE u32 pack(float low, float high) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
DEVICE float unpack(u16 bits) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits)); return y; }
#endif
