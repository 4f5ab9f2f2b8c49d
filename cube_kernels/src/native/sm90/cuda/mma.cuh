// Products of one warp: sixteen rows, whose accumulators and first operand lie in registers as wgmma has them, and a second operand of
// eight columns. `tests/machine` has others in the place of these functions.

// Four matrices of eight rows of 16 bytes: lane 8 i + r has the address of row r of matrix i. Of each a lane gets the two elements
// 2 (lane % 4) of row lane / 4 or, turned, of column lane / 4.
DEVICE void load_matrices(u32 (&m)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address));
}
DEVICE void load_matrices_turned(u32 (&m)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address));
}

// d[0..4] += a b, over a depth of 16.
DEVICE void multiply_add(float* d, const u32* a, u32 b0, u32 b1) {
#if BF16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Sixteen bytes from memory to shared memory, or zeros. The thread arrives at a barrier when all of those that it has begun are there.
DEVICE void copy_piece(u32 destination, const void* source, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(exists ? 16 : 0) : "memory");
}
DEVICE void arrive_with_pieces(u32 barrier) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }
// Until the thread's own are there.
DEVICE void wait_for_pieces() { asm volatile("cp.async.wait_all;" ::: "memory"); }
