// What LLVM calls to round a float to bfloat16 on a processor that has no instruction for it (AVX-512 BF16): GCC's library has it from
// version 13 on. CubeCL's kernels for the CPU find it where it is loaded with a program: LD_PRELOAD.
#include <stdint.h>
#include <string.h>

// A bfloat16 is returned where a _Float16 is, and GCC 12 knows that type alone.
_Float16 __truncsfbf2(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const int is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  const uint16_t half = is_nan ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  _Float16 result;
  memcpy(&result, &half, 2);
  return result;
}
