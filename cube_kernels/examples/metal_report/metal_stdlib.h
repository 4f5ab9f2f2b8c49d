// What the Metal text of CubeCL's compiler needs of Metal's library, for a C++ compiler of the host: declarations alone.
#pragma once
#include <stddef.h>

#define device
#define thread
#define threadgroup
#define constant

namespace metal {

typedef _Float16 half;
struct bfloat {
  unsigned short bits;
  bfloat() = default;
  explicit bfloat(float value);
  operator float() const;
};
struct uint3 {
  unsigned x, y, z;
  unsigned operator[](unsigned axis) const;
};
template <class T, size_t N> struct array {
  T elements[N];
  T& operator[](size_t index);
  const T& operator[](size_t index) const;
};

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

// Of f16 in f16, of f32 in f32.
#define MATH(name) float name(float); half name(half);
MATH(exp) MATH(exp2) MATH(log) MATH(sqrt) MATH(rsqrt) MATH(abs) MATH(tanh) MATH(floor) MATH(ceil) MATH(round) MATH(trunc)
#undef MATH
bool isnan(float), isnan(half), isinf(float), isinf(half), isfinite(float);
#define TWO(name, T) T name(T, T);
TWO(min, float) TWO(max, float) TWO(min, half) TWO(max, half) TWO(min, int) TWO(max, int) TWO(min, unsigned) TWO(max, unsigned)
TWO(min, long) TWO(max, long) TWO(min, unsigned long) TWO(max, unsigned long) TWO(pow, float)
#undef TWO
float fma(float, float, float);
half fma(half, half, half);
template <class T> T clamp(T, T, T);
unsigned popcount(unsigned), clz(unsigned), ctz(unsigned);
unsigned mulhi(unsigned, unsigned);
template <class To, class From> To as_type(From);
template <class T> T select(T, T, bool);

template <class T> T simd_shuffle(T, unsigned short lane);
template <class T> T simd_shuffle_xor(T, unsigned short mask);
template <class T> T simd_sum(T);
template <class T> T simd_max(T);
bool simd_all(bool), simd_any(bool), simd_is_first();

// Cooperative matrices of Apple's GPUs.
template <class T> struct simdgroup_matrix {};
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat> simdgroup_bfloat8x8;
typedef simdgroup_matrix<float> simdgroup_float8x8;
template <class T, int R, int C> simdgroup_matrix<T> make_filled_simdgroup_matrix(T);
template <class T> void simdgroup_load(simdgroup_matrix<T>&, const T* from, unsigned long stride, int origin, bool is_transposed);
template <class T> void simdgroup_store(const simdgroup_matrix<T>&, T* to, unsigned long stride);
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D>&, const simdgroup_matrix<A>&, const simdgroup_matrix<B>&, const simdgroup_matrix<C>&);

}  // namespace metal
