// TMA, and the mbarriers that its loads arrive at.

struct __align__(64) TensorMap { u64 opaque[16]; };

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
DEVICE bool barrier_try(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}
#if BOUNDED
// Of a program that is only to show whether it runs: who waits for seconds ends all waits, so that kernels come to an end.
__device__ volatile int gave_up;
DEVICE u64 nanoseconds() { u64 y; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(y)); return y; }
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  const u64 start = nanoseconds();
  while (!barrier_try(barrier, parity) && !gave_up)
    if (nanoseconds() - start > 2000000000ull) gave_up = 1;
}
#else
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  while (!barrier_try(barrier, parity)) {}
}
#endif

// ---- TMA: a box of a five-dimensional tensor into shared memory

DEVICE void tma_load(u32 destination, const TensorMap* map, u32 barrier, int d, int x, int y, int z, int head) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      ::"r"(destination), "l"(map), "r"(barrier), "r"(d), "r"(x), "r"(y), "r"(z), "r"(head) : "memory");
}
// As far as the cache.
DEVICE void tma_prefetch_box(const TensorMap* map, int d, int x, int y, int z, int head) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(d), "r"(x), "r"(y), "r"(z), "r"(head) : "memory");
}
// Ahead of the use of a map that lies in global memory and that the host wrote there.
DEVICE void tma_acquire(const TensorMap* map) { asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory"); }
DEVICE void tma_prefetch(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Makes ordinary writes to shared memory visible to TMA and the tensor cores.
DEVICE void shared_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
