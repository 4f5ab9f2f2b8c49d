// The instructions of sm_100a, one function each: all assembly that its kernels have beside device.cuh and tma.cuh. How they are
// ordered is the business of who calls them.

// ---- roles

// One lane of a whole warp, known to the compiler to be one.
DEVICE bool elect_one() {
  u32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected;
}
template <int N> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
DEVICE float load_float(u32 address) { float y; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(y) : "r"(address)); return y; }
DEVICE void store_float(u32 address, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory"); }
DEVICE float2 load_float2(u32 address) {
  float2 y;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(y.x), "=f"(y.y) : "r"(address));
  return y;
}
DEVICE u32 load_word(u32 address) { u32 y; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(y) : "r"(address)); return y; }

// ---- tensor memory: 128 lanes of 512 columns of 32 bits. An address is lane << 16 | column, and a warp reaches the 32 lanes that
// belong to its place in its warpgroup.

// One whole warp; the address is written to shared memory.
DEVICE void tmem_alloc(u32 destination, u32 columns) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(destination), "r"(columns) : "memory");
}
DEVICE void tmem_relinquish() { asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"); }
DEVICE void tmem_free(u32 address, u32 columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns) : "memory");
}

// Accesses in front of it are ordered before what the thread tells others, those behind it after what it was told.
DEVICE void tmem_fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
DEVICE void tmem_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
// Loads and stores are done behind it, and only there.
DEVICE void tmem_wait_loads() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
DEVICE void tmem_wait_stores() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

#define EIGHT(f, i) f(i), f(i + 1), f(i + 2), f(i + 3), f(i + 4), f(i + 5), f(i + 6), f(i + 7)
#define THIRTY_TWO(f) EIGHT(f, 0), EIGHT(f, 8), EIGHT(f, 16), EIGHT(f, 24)
#define OPERANDS "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
// 32 columns of this thread's lane.
DEVICE void tmem_load(float* r, u32 address) {
#define OUTPUT(i) "=f"(r[i])
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {" OPERANDS "}, [%32];" : THIRTY_TWO(OUTPUT) : "r"(address));
#undef OUTPUT
}
DEVICE void tmem_store(u32 address, const u32* r) {
#define INPUT(i) "r"(r[i])
  asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], {" OPERANDS "};" ::THIRTY_TWO(INPUT), "r"(address) : "memory");
#undef INPUT
}
// 16 columns.
DEVICE void tmem_store16(u32 address, const u32* r) {
#define INPUT(i) "r"(r[i])
  asm volatile("tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15};"
               ::EIGHT(INPUT, 0), EIGHT(INPUT, 8), "r"(address) : "memory");
#undef INPUT
}
DEVICE void tmem_store(u32 address, const float* r) {
#define INPUT(i) "f"(r[i])
  asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], {" OPERANDS "};" ::THIRTY_TWO(INPUT), "r"(address) : "memory");
#undef INPUT
}
// Behind the wait for loads: the compiler uses none of the values ahead of it.
template <int N> DEVICE void pin(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(values[i])::"memory");
}

// ---- products: one thread issues all of a CTA, which are done in order

// d = a b + (accumulate ? d : 0), 128 x N x 16: the sum in tensor memory, both operands in shared memory.
DEVICE void mma_shared(u32 d, u64 a, u64 b, u32 instruction, u32 accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}"
      ::"r"(d), "l"(a), "l"(b), "r"(instruction), "r"(accumulate) : "memory");
}
// The same with the first operand in tensor memory: a row in each lane, two of its elements to a column.
DEVICE void mma_tensor(u32 d, u32 a, u64 b, u32 instruction, u32 accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}"
      ::"r"(d), "r"(a), "l"(b), "r"(instruction), "r"(accumulate) : "memory");
}
// The barrier gets one arrival when all products that this thread has issued are done.
DEVICE void mma_commit(u32 barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- arithmetic

// The largest, or NaN if any is: fmaxf leaves it out.
DEVICE float max2(float a, float b) { float y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE float max3(float a, float b, float c) { float y; asm("max.NaN.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c)); return y; }
// x = a b + e and y = c d + f at once, which is how a multiprocessor has 128 multiply-adds a cycle.
DEVICE void fma2(float& x, float& y, float a, float b, float c, float d, float e, float f) {
  asm("{\n.reg .b64 p, q, r;\nmov.b64 p, {%2, %4};\nmov.b64 q, {%3, %5};\nmov.b64 r, {%6, %7};\n"
      "fma.rn.ftz.f32x2 p, p, q, r;\nmov.b64 {%0, %1}, p;\n}"
      : "=f"(x), "=f"(y) : "f"(a), "f"(b), "f"(c), "f"(d), "f"(e), "f"(f));
}
// x = a + b and y = c + d at once.
DEVICE void add2(float& x, float& y, float a, float b, float c, float d) {
  asm("{\n.reg .b64 p, q;\nmov.b64 p, {%2, %4};\nmov.b64 q, {%3, %5};\nadd.rn.ftz.f32x2 p, p, q;\nmov.b64 {%0, %1}, p;\n}"
      : "=f"(x), "=f"(y) : "f"(a), "f"(b), "f"(c), "f"(d));
}
// The same, towards minus infinity.
DEVICE void add2_down(float& x, float& y, float a, float b, float c, float d) {
  asm("{\n.reg .b64 p, q;\nmov.b64 p, {%2, %4};\nmov.b64 q, {%3, %5};\nadd.rm.ftz.f32x2 p, p, q;\nmov.b64 {%0, %1}, p;\n}"
      : "=f"(x), "=f"(y) : "f"(a), "f"(b), "f"(c), "f"(d));
}
