// What all kernels use of CUDA, and conversions of the element type (BF16). No headers: NVRTC has none at run time.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define NEG_INF __int_as_float(0xff800000)
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
#define DEVICE __device__ __forceinline__

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

DEVICE float exp2_approx(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float log2_approx(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// Of launches that begin before the one ahead of them ends: the next one may begin when all CTAs have said so or ended; until the one ahead has ended,
// and what it wrote is seen.
#if __CUDA_ARCH__ >= 900
DEVICE void let_next_launch_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_launch_ahead() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEVICE void let_next_launch_begin() {}
DEVICE void wait_for_launch_ahead() {}
#endif

#if BF16
DEVICE u32 pack(float low, float high) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
DEVICE float unpack(u16 bits) { return __uint_as_float((u32)bits << 16); }
// Both halves zero, of any sign, or NaN once one of a pair of numbers was infinite or NaN.
DEVICE u32 add_poison(u32 poison, u32 both) { u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(both), "r"(0), "r"(poison)); return r; }
#else
DEVICE u32 pack(float low, float high) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
DEVICE float unpack(u16 bits) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits)); return y; }
DEVICE u32 add_poison(u32 poison, u32 both) { u32 r; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(both), "r"(0), "r"(poison)); return r; }
#endif
