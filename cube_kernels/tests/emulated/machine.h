// What the CUDA C++ of CubeCL's compiler needs, for a CPU: the kernels' units are fibers (machine.cpp), which take turns
// where they wait for each other. Instructions of a plane go through functions that all of its units call.
#pragma once
#include <stddef.h>

#define __global__
#define __device__
#define __shared__
#define __restrict__ __restrict
#define __launch_bounds__(units)
#define __align__(bytes)
#define __grid_constant__
#define warpSize 32u

struct Index { unsigned x, y, z; };

extern "C" {
extern Index threadIdx, blockIdx, blockDim, gridDim;
// All units of the cube meet.
void machine_sync();
// Those of the plane.
void machine_sync_plane();
// As many units meet at a barrier, some of which may only arrive there.
void machine_meet(unsigned barrier, unsigned units);
void machine_arrive(unsigned barrier, unsigned units);
// The value that another unit of the plane gives.
unsigned machine_shuffle(unsigned value, unsigned lane);
unsigned machine_lane();
// Four matrices of 8 x 8; each unit gives the address of a row in shared memory.
void machine_ldmatrix(int is_transposed, unsigned row, unsigned* result);
// d = a b + c: m16n8k16 of f16 or bf16, m16n8k8 of tf32, which drops the bits that tf32 does not have.
enum Type { TYPE_F16, TYPE_BF16, TYPE_TF32 };
void machine_mma(int type, const unsigned* a, const unsigned* b, const float* c, float* d);
// Copies are done when they are waited for, and not before.
void machine_copy(unsigned to, const void* from, unsigned bytes);
void machine_wait();
unsigned machine_shared_address(const void* pointer);
}

static inline void __syncthreads() { machine_sync(); }
static inline void __syncwarp() { machine_sync_plane(); }
static inline unsigned __activemask() { return ~0u; }
static inline unsigned __cvta_generic_to_shared(const void* pointer) { return machine_shared_address(pointer); }

template <class T> static inline unsigned machine_bits(T value) {
  static_assert(sizeof(T) == 4, "a register");
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}
template <class T> static inline void machine_set(T& value, unsigned bits) {
  static_assert(sizeof(T) == 4, "a register");
  __builtin_memcpy(&value, &bits, 4);
}
template <class T> static inline T __shfl_sync(unsigned, T value, unsigned lane) {
  T result;
  machine_set(result, machine_shuffle(machine_bits(value), lane));
  return result;
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, unsigned lanes) {
  return __shfl_sync(mask, value, machine_lane() ^ lanes);
}

// The assembly, as tests/emulated/assembly.rs rewrites it.
template <class R, class A> static inline void machine_load_matrices(int is_transposed, R& r0, R& r1, R& r2, R& r3, A row) {
  unsigned result[4];
  machine_ldmatrix(is_transposed, row, result);
  machine_set(r0, result[0]), machine_set(r1, result[1]), machine_set(r2, result[2]), machine_set(r3, result[3]);
}
template <class A, class B> static inline void machine_multiply(int type, float& d0, float& d1, float& d2, float& d3, A a0, A a1, A a2, A a3, B b0, B b1,
                                                                float c0, float c1, float c2, float c3) {
  const unsigned a[4] = {machine_bits(a0), machine_bits(a1), machine_bits(a2), machine_bits(a3)}, b[2] = {machine_bits(b0), machine_bits(b1)};
  const float c[4] = {c0, c1, c2, c3};
  float d[4];
  machine_mma(type, a, b, c, d);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
static inline void machine_power(float& result, float argument) { result = __builtin_exp2f(argument); }

static inline float exp(float x) { return __builtin_expf(x); }
static inline float log(float x) { return __builtin_logf(x); }
static inline float fabs(float x) { return __builtin_fabsf(x); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float min(float a, float b) { return __builtin_fminf(a, b); }

typedef _Float16 __half;
struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) {
    unsigned word = machine_bits(value);
    const bool is_nan = (word & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
  }
  operator float() const {
    float value;
    machine_set(value, (unsigned)bits << 16);
    return value;
  }
};

namespace nvcuda { namespace wmma {
// cvt.rna.tf32.f32: to the nearest, ties away from zero.
static inline float __float_to_tf32(float value) {
  unsigned word = machine_bits(value);
  const bool is_nan = (word & 0x7fffffff) > 0x7f800000;
  machine_set(value, is_nan ? 0x7fffffff : (word + 0x1000) & ~0x1fffu);
  return value;
}

// Cooperative matrices: every unit holds all of each.
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment;
template <int M, int N, int K, class T, class Layout> struct fragment<matrix_a, M, N, K, T, Layout> { float x[M][K]; };
template <int M, int N, int K, class T, class Layout> struct fragment<matrix_b, M, N, K, T, Layout> { float x[K][N]; };
template <int M, int N, int K, class T> struct fragment<accumulator, M, N, K, T, void> { float x[M][N]; };

template <int M, int N, int K, class T> void load_matrix_sync(fragment<matrix_a, M, N, K, T, row_major>& f, const T* from, unsigned stride) {
  for (int i = 0; i < M; i++)
    for (int j = 0; j < K; j++) f.x[i][j] = float(from[i * stride + j]);
}
template <int M, int N, int K, class T> void load_matrix_sync(fragment<matrix_b, M, N, K, T, row_major>& f, const T* from, unsigned stride) {
  for (int i = 0; i < K; i++)
    for (int j = 0; j < N; j++) f.x[i][j] = float(from[i * stride + j]);
}
template <int M, int N, int K, class T> void load_matrix_sync(fragment<matrix_b, M, N, K, T, col_major>& f, const T* from, unsigned stride) {
  for (int i = 0; i < K; i++)
    for (int j = 0; j < N; j++) f.x[i][j] = float(from[j * stride + i]);
}
template <int M, int N, int K> void store_matrix_sync(float* to, const fragment<accumulator, M, N, K, float>& f, unsigned stride, layout_t) {
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) to[i * stride + j] = f.x[i][j];
}
template <int M, int N, int K> void fill_fragment(fragment<accumulator, M, N, K, float>& f, float value) {
  for (auto& row : f.x)
    for (float& element : row) element = value;
}
template <int M, int N, int K, class T, class A, class B>
void mma_sync(fragment<accumulator, M, N, K, float>& d, const fragment<matrix_a, M, N, K, T, A>& a, const fragment<matrix_b, M, N, K, T, B>& b,
              const fragment<accumulator, M, N, K, float>& c) {
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      float sum = c.x[i][j];
      for (int k = 0; k < K; k++) sum += a.x[i][k] * b.x[k][j];
      d.x[i][j] = sum;
    }
}
}}
