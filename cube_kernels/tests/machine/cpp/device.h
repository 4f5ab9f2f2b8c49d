// What the native kernels need to be C++ for a CPU: CUDA's words, and the functions of the headers that hold their assembly
// (`cuda/device.cuh`, `cuda/tma.cuh`, `sm90/cuda/wgmma.cuh`, and those for tcgen05), as calls of the machine. What they mean is
// said where the machine defines them; here is nothing but types. A kernel includes this file in place of those headers.
#pragma once
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define __global__
#define __device__
#define __forceinline__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
// Arrays of a function; the linker knows where the section begins and ends.
#define __shared__ static __attribute__((section("machine_static")))
#define DEVICE inline
#define NEG_INF (-__builtin_inff())
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

struct Index { unsigned x, y, z; };
struct uint4 { u32 x, y, z, w; };
struct uint2 { u32 x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int4 { int x, y, z, w; };
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// What cuTensorMapEncodeTiled takes.
struct __align__(64) TensorMap {
  const u8* base;
  u64 sizes[5], strides[4];      // elements; bytes
  u32 box[5], steps[5];          // as the driver takes them: a load brings box / steps elements
  u32 element, swizzle;          // bytes; 128 or 0
};
static_assert(sizeof(TensorMap) == 128, "as on the device");

// A wgmma instruction, from its text.
enum Kind { KIND_F16, KIND_BF16, KIND_E5M2 };
struct Wgmma { int n, depth; Kind kind; int transposed_a, transposed_b; };

extern "C" {
Index m_thread(), m_block(), m_block_extent(), m_grid_extent();
void m_sync();                                           // __syncthreads
void m_named(u32 id, u32 threads, int waits);
u32 m_exchange(u32 lanes, u32 value, u32 lane);          // what another lane of the warp gives
u32 m_ballot(u32 lanes, int predicate);
void m_sync_lanes(u32 lanes);
void m_converge();                                       // what a whole warp does together, without a promise for memory
u32 m_shared_address(const void* pointer);
u8* m_shared(u32 address, u32 bytes, int writes);        // for an access by the thread itself, checked
void m_barrier_init(u32 barrier, u32 arrivals);
void m_barrier_init_fence();
void m_barrier_arrive(u32 barrier, u32 bytes);
void m_barrier_wait(u32 barrier, u32 parity);
void m_tma(u32 destination, const TensorMap* map, u32 barrier, const int* at);
void m_tma_acquire(const TensorMap* map);
void m_proxy_fence();
void m_copy(u32 to, const void* from, u32 bytes);        // cp.async of a thread, of zeros from nowhere
void m_copy_arrive(u32 barrier);                         // cp.async.mbarrier.arrive.noinc
void m_copy_wait();                                      // cp.async.wait_all
void m_copy_commit();                                    // cp.async.commit_group
void m_launch_wait();                                    // griddepcontrol.wait
void m_launch_next();                                    // griddepcontrol.launch_dependents
void m_copy_wait_groups(u32 groups);                     // cp.async.wait_group
void m_setmaxnreg(int registers, int more);
// Hopper: all 128 threads of a warpgroup call; d has n / 2 elements, a is four registers or null.
void m_wgmma(const Wgmma* of, float* d, const u32* const* a, u64 a_matrix, u64 b, int accumulate);
void m_wgmma_fence();
void m_wgmma_commit();
void m_wgmma_wait(int pending);
// d[0..4] += a b of a warp's m16n8k16; a has four registers.
void m_mma_sync(float* d, const u32* a, u32 b0, u32 b1, Kind kind);
// Blackwell.
void m_tmem_alloc(u32 destination, u32 columns);
void m_tmem_relinquish();
void m_tmem_free(u32 address, u32 columns);
void m_tmem_fence(int after);
void m_tmem_wait(int stores);
void m_tmem_load(u32* registers, u32 count, u32 address);
void m_tmem_store(u32 address, const u32* registers, u32 count);
void m_mma(u32 d, int a_in_tmem, u64 a, u64 b, u32 instruction, u32 accumulate);
void m_mma_commit(u32 barrier);
}
#define threadIdx m_thread()
#define blockIdx m_block()
#define blockDim m_block_extent()
#define gridDim m_grid_extent()

template <class To, class From> static inline To m_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline float __int_as_float(int x) { return m_bits<float>(x); }
static inline int __float_as_int(float x) { return m_bits<int>(x); }
static inline float __uint_as_float(u32 x) { return m_bits<float>(x); }
static inline u32 __float_as_uint(float x) { return m_bits<u32>(x); }
static inline void __syncthreads() { m_sync(); }
static inline void __syncwarp(u32 lanes = ~0u) { m_sync_lanes(lanes); }
template <class T> static inline T __shfl_sync(u32 lanes, T value, int lane) {
  return m_bits<T>(m_exchange(lanes, m_bits<u32>(value), lane));
}
template <class T> static inline T __shfl_xor_sync(u32 lanes, T value, int mask) {
  return m_bits<T>(m_exchange(lanes, m_bits<u32>(value), (threadIdx.x % 32) ^ mask));
}
template <class T> static inline T __shfl_up_sync(u32 lanes, T value, int distance) {
  const int lane = threadIdx.x % 32;
  return m_bits<T>(m_exchange(lanes, m_bits<u32>(value), lane < distance ? lane : lane - distance));
}
static inline u32 __ballot_sync(u32 lanes, int p) { return m_ballot(lanes, p); }
static inline int __any_sync(u32 lanes, int p) { return m_ballot(lanes, p) != 0; }
static inline int __all_sync(u32 lanes, int p) { return m_ballot(lanes, p) == lanes; }
static inline u32 __match_any_sync(u32 lanes, int value) {
  u32 same = 0;
  for (int lane = 0; lane < 32; lane++) same |= (u32)(m_exchange(lanes, (u32)value, lane) == (u32)value) << lane;
  return same;
}
static inline int __ffs(u32 x) { return __builtin_ffs(x); }
static inline int __popc(u32 x) { return __builtin_popcount(x); }
static inline void __stcs(uint4* to, uint4 value) { *to = value; }
static inline u32 __byte_perm(u32 low, u32 high, u32 places) {
  const u64 bytes = (u64)high << 32 | low;
  u32 result = 0;
  for (int i = 0; i < 4; i++) result |= (u32)(bytes >> 8 * (places >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
// CTAs run one after the other.
static inline int atomicAdd(int* at, int more) { const int old = *at; *at += more; return old; }
static inline void __threadfence() {}
template <class T> static inline T __ldcg(const T* from) { return *from; }
#define __cvta_generic_to_shared(pointer) ((u64)m_shared_address(pointer))

// ---- cuda/device.cuh

DEVICE void memory_barrier() {}
DEVICE int opaque(int value) { return value; }
DEVICE int uniform(int value) { return __shfl_sync(~0u, value, 0); }
DEVICE void let_next_launch_begin() { m_launch_next(); }
DEVICE void wait_for_launch_ahead() { m_launch_wait(); }
DEVICE float exp2_approx(float x) { return exp2f(x); }
DEVICE float log2_approx(float x) { return log2f(x); }
DEVICE float m_narrow(u16 bits, bool bf16) {
  if (bf16) return __uint_as_float((u32)bits << 16);
  return (float)m_bits<_Float16>(bits);
}
DEVICE u16 m_round(float x, bool bf16) {
  if (!bf16) return m_bits<u16>((_Float16)x);
  const u32 w = m_bits<u32>(x);
  return (w & 0x7fffffff) > 0x7f800000 ? 0x7fff : (w + 0x7fff + (w >> 16 & 1)) >> 16;
}
#ifdef BF16
DEVICE u32 pack(float low, float high) { return m_round(low, BF16) | (u32)m_round(high, BF16) << 16; }
DEVICE float unpack(u16 bits) { return m_narrow(bits, BF16); }
DEVICE u32 add_poison(u32 poison, u32 both) {
  const float low = m_narrow(both, BF16) * 0.f + m_narrow(poison, BF16), high = m_narrow(both >> 16, BF16) * 0.f + m_narrow(poison >> 16, BF16);
  return pack(low, high);
}
#endif

// ---- cuda/tma.cuh

DEVICE void barrier_init(u32 barrier, u32 arrivals) { m_barrier_init(barrier, arrivals); }
DEVICE void barrier_init_fence() { m_barrier_init_fence(); }
DEVICE void barrier_expect(u32 barrier, u32 bytes) { m_barrier_arrive(barrier, bytes); }
DEVICE void barrier_arrive(u32 barrier) { m_barrier_arrive(barrier, 0); }
DEVICE void barrier_wait(u32 barrier, u32 parity) { m_barrier_wait(barrier, parity); }
DEVICE void tma_load(u32 destination, const TensorMap* map, u32 barrier, int d, int x, int y, int z, int head) {
  const int at[5] = {d, x, y, z, head};
  m_tma(destination, map, barrier, at);
}
DEVICE void tma_prefetch(const TensorMap*) {}
DEVICE void tma_prefetch_box(const TensorMap*, int, int, int, int, int) {}
DEVICE void tma_acquire(const TensorMap* map) { m_tma_acquire(map); }
DEVICE void shared_proxy_fence() { m_proxy_fence(); }

// ---- shared memory by its address

DEVICE u32 shared_address(const void* pointer) { return m_shared_address(pointer); }
template <class T> static inline T m_load(u32 address) {
  T value;
  __builtin_memcpy(&value, m_shared(address, sizeof(T), 0), sizeof value);
  return value;
}
template <class T> static inline void m_store(u32 address, T value) {
  __builtin_memcpy(m_shared(address, sizeof(T), 1), &value, sizeof value);
}
DEVICE float load_float(u32 address) { return m_load<float>(address); }
DEVICE void store_float(u32 address, float x) { m_store(address, x); }
DEVICE float2 load_float2(u32 address) { return m_load<float2>(address); }
DEVICE float4 load_float4(u32 address) { return m_load<float4>(address); }
#define shared_base() ((u32)m_shared_address(memory))
DEVICE u32 load_word(u32 address) { return m_load<u32>(address); }
DEVICE uint4 load_words(u32 address) { return m_load<uint4>(address); }
DEVICE void store_word(u32 address, u32 x) { m_store(address, x); }

// ---- sm90/cuda/wgmma.cuh, but for the products, which are written from the instructions' text

template <int N> DEVICE void take_registers() { m_setmaxnreg(N, 1); }
template <int N> DEVICE void give_registers() { m_setmaxnreg(N, 0); }
DEVICE void wgmma_fence() { m_wgmma_fence(); }
DEVICE void wgmma_commit() { m_wgmma_commit(); }
template <int PENDING> DEVICE void wgmma_wait() { m_wgmma_wait(PENDING); }
template <int N> DEVICE void pin(float (&)[N]) {}
DEVICE u32 shift_left(u32 value, u32 bits) { return bits < 32 ? value << bits : 0; }
DEVICE void named_sync(int id, int threads) { m_named(id, threads, 1); }
DEVICE void named_arrive(int id, int threads) { m_named(id, threads, 0); }

// ---- cuda/mma.cuh: what each lane holds goes to the others by exchanges

DEVICE u32 address_of_shared(const void* pointer) { return m_shared_address(pointer); }
#ifdef BF16
DEVICE void mma(float* d, const u32* a, u32 b0, u32 b1) { m_mma_sync(d, a, b0, b1, BF16 ? KIND_BF16 : KIND_F16); }
#endif
template <int N> DEVICE void load_matrices(u32 (&r)[N], u32 address) {
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < N; i++) r[i] = m_load<u32>(m_exchange(~0u, address, 8 * i + lane / 4) + 4 * (lane % 4));
}
DEVICE void load_transposed(u32 (&r)[4], u32 address) {
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) {
    u32 halves[2];
    for (int e = 0; e < 2; e++) halves[e] = m_load<u16>(m_exchange(~0u, address, 8 * i + 2 * (lane % 4) + e) + 2 * (lane / 4));
    r[i] = halves[0] | halves[1] << 16;
  }
}
template <int BYTES> DEVICE void copy_word(u32 to, const void* from) { m_copy(to, from, BYTES); }
DEVICE void copy_or_zero(u32 to, const void* from, bool is_there) { m_copy(to, is_there ? from : nullptr, 16); }
DEVICE void arrive_with_copies(u32 barrier) { m_copy_arrive(barrier); }
DEVICE void wait_for_copies() { m_copy_wait(); }
DEVICE void commit_copies() { m_copy_commit(); }
template <int GROUPS> DEVICE void wait_for_groups() { m_copy_wait_groups(GROUPS); }

// ---- sm100: tcgen05, and arithmetic

DEVICE bool elect_one() { return m_converge(), threadIdx.x % 32 == 0; }
DEVICE void tmem_alloc(u32 destination, u32 columns) { m_tmem_alloc(destination, columns); }
DEVICE void tmem_relinquish() { m_tmem_relinquish(); }
DEVICE void tmem_free(u32 address, u32 columns) { m_tmem_free(address, columns); }
DEVICE void tmem_fence_before() { m_tmem_fence(0); }
DEVICE void tmem_fence_after() { m_tmem_fence(1); }
DEVICE void tmem_wait_loads() { m_tmem_wait(0); }
DEVICE void tmem_wait_stores() { m_tmem_wait(1); }
DEVICE void tmem_load(float* r, u32 address) { m_tmem_load((u32*)r, 32, address); }
DEVICE void tmem_store(u32 address, const u32* r) { m_tmem_store(address, r, 32); }
DEVICE void tmem_store16(u32 address, const u32* r) { m_tmem_store(address, r, 16); }
DEVICE void tmem_store(u32 address, const float* r) { m_tmem_store(address, (const u32*)r, 32); }
DEVICE void mma_shared(u32 d, u64 a, u64 b, u32 instruction, u32 accumulate) { m_mma(d, 0, a, b, instruction, accumulate); }
DEVICE void mma_tensor(u32 d, u32 a, u64 b, u32 instruction, u32 accumulate) { m_mma(d, 1, a, b, instruction, accumulate); }
DEVICE void mma_commit(u32 barrier) { m_mma_commit(barrier); }
DEVICE u32 max_pair(u32 a, u32 b) { return std::max(a & 0xFFFF, b & 0xFFFF) | std::max(a >> 16, b >> 16) << 16; }
DEVICE float max2(float a, float b) { return a != a || b != b ? a + b : fmaxf(a, b); }
DEVICE float max3(float a, float b, float c) { return max2(a, max2(b, c)); }
DEVICE void fma2(float& x, float& y, float a, float b, float c, float d, float e, float f) { x = fmaf(a, b, e), y = fmaf(c, d, f); }
DEVICE void add2(float& x, float& y, float a, float b, float c, float d) { x = a + b, y = c + d; }
DEVICE float m_add_down(float a, float b) {
  const double exact = (double)a + b;
  const float y = (float)exact;
  return y > exact ? nextafterf(y, NEG_INF) : y;
}
DEVICE void add2_down(float& x, float& y, float a, float b, float c, float d) { x = m_add_down(a, b), y = m_add_down(c, d); }

// ---- how the machine calls a kernel: with arguments that are copied for each thread, as they are there

template <size_t... I> struct Places {};
template <size_t N, size_t... I> struct PlacesOf : PlacesOf<N - 1, N - 1, I...> {};
template <size_t... I> struct PlacesOf<0, I...> { typedef Places<I...> type; };
template <class... A, size_t... I> static inline void m_call(void (*kernel)(A...), void** arguments, Places<I...>) { kernel(*(A*)arguments[I]...); }
template <class... A> static inline void m_call(void (*kernel)(A...), void** arguments) {
  m_call(kernel, arguments, typename PlacesOf<sizeof...(A)>::type());
}
// The bytes of each argument, and how many there are.
template <class... A> static inline unsigned m_sizes(void (*)(A...), unsigned* sizes) {
  const size_t all[] = {sizeof(A)...};
  for (size_t i = 0; i < sizeof...(A); i++) sizes[i] = (unsigned)all[i];
  return sizeof...(A);
}
