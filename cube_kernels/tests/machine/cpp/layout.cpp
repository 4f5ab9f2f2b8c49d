// Matrices in shared memory: what their descriptors say, bit by bit, and where an element is. The canonical layouts of the PTX ISA for
// wgmma and tcgen05: pieces of 16 bytes, patterns of eight rows.
#include "machine.h"

namespace machine {

static Matrix decoded(u64 d, int swizzle) {
  const Matrix m = {(u32)(d & 0x3fff) << 4, (u32)(d >> 16 & 0x3fff) << 4, (u32)(d >> 32 & 0x3fff) << 4, swizzle};
  // Patterns begin at multiples of 1024, 512 or 256 bytes: the base offset, which says otherwise, is zero.
  if (swizzle && m.start >> 7 & (swizzle / 16 - 1)) fault("descriptor: a start at %d, within a pattern", (int)(m.start - SHARED));
  return m;
}
Matrix decode_sm90(u64 d) {
  static const int swizzles[] = {0, 128, 64, 32};
  if (d >> 14 & 3 || d >> 30 & 3 || d >> 46 & 0xffff) fault("descriptor %llx: base offset or reserved bits", d);
  return decoded(d, swizzles[d >> 62]);
}
Matrix decode_sm100(u64 d) {
  static const int swizzles[] = {0, -1, 128, -1, 64, -1, 32, -1};
  if ((d >> 46 & 7) != 1) fault("descriptor %llx: bits 46 to 48 are not 0b001", d);
  if (d >> 14 & 3 || d >> 30 & 3 || d >> 49 & 0xfff) fault("descriptor %llx: base offset, absolute stride or reserved bits", d);
  if (swizzles[d >> 61] < 0) fault("descriptor %llx: swizzling mode %d", d, (int)(d >> 61));
  return decoded(d, swizzles[d >> 61]);
}

u32 element_address(const Matrix& m, bool is_mn_major, int bytes, int row, int k) {
  const int piece = 16 / bytes, width = m.swizzle ? m.swizzle / bytes : piece;  // elements of a row of the pattern
  u32 at = m.start;
  if (!is_mn_major) {
    at += row / 8 * m.stride + row % 8 * (m.swizzle ? m.swizzle : 16);
    at += m.swizzle ? k * bytes : k / piece * m.leading + k % piece * bytes;
  } else if (m.swizzle) {
    at += row / width * m.leading + row % width * bytes + k / 8 * m.stride + k % 8 * m.swizzle;
  } else {
    at += row / piece * m.stride + row % piece * bytes + k / 8 * m.leading + k % 8 * 16;
  }
  // Pieces change places within 128, 64 or 32 bytes, by the address.
  if (m.swizzle) at ^= (at >> 7 & (m.swizzle / 16 - 1)) << 4;
  return at;
}

void check_matrix(const Matrix& m, bool mn, int bytes, int from, int rows, int depth, Agent agent, u32 epoch, const View& view, const char* what) {
  const int piece = 16 / bytes;
  for (int r = from; r < from + rows; r += mn ? piece : 1)
    for (int k = 0; k < depth; k += mn ? 1 : piece) {
      const u32 at = element_address(m, mn, bytes, r, k);
      shared_in_range(at, 16);
      check_shared(at, 16, agent, epoch, view, false, true, what);
    }
}

float number(u32 bits, Kind kind) {
  static std::vector<float> halves;
  if (kind == KIND_BF16) return m_narrow((u16)bits, true);
  if (halves.empty()) for (u32 i = 0; i < 65536; i++) halves.push_back(m_narrow((u16)i, false));
  return halves[kind == KIND_E5M2 ? (bits & 0xff) << 8 : bits & 0xffff];
}
void gather(const Matrix& m, bool mn, Kind kind, int rows, int depth, float* to) {
  const int bytes = kind == KIND_E5M2 ? 1 : 2;
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < depth; k++) {
      u32 bits = 0;
      memcpy(&bits, at_shared(element_address(m, mn, bytes, r, k)), bytes);
      to[r * depth + k] = number(bits, kind);
    }
}

}  // namespace machine
