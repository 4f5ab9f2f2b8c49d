// Products of a warp on tensor cores, the loads from shared memory that feed them, and the copies that fill it (sm_80 and newer). Lane `4 g + t` holds, of a
// matrix of 16 rows of 16 elements, rows g and g + 8 at columns 2 t and 2 t + 1, and 8 columns on.

// d[16 x 8] += a[16 x 16] b[16 x 8]; sums are f32. In d a lane holds two columns of row g, and two of row g + 8. These are the layouts of wgmma,
// for the sixteen rows of one of its warps.
DEVICE void mma(float* d, const u32* a, u32 b0, u32 b1) {
#if BF16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two matrices of 8 rows of 8 elements, whose rows are where lanes 0 to 15 say.
DEVICE void load_matrices(u32 (&r)[2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}

// Four of them.
DEVICE void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Four of them, each with rows for columns.
DEVICE void load_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Copies from global to shared memory that go on until `wait_for_copies`: 16 bytes, zeros where nothing is there; 4, 8 or 16 bytes.
DEVICE void copy_or_zero(u32 to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
template <int BYTES> DEVICE void copy_word(u32 to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(from), "n"(BYTES) : "memory");
}
// The thread arrives at a barrier when all of those that it has begun are there.
DEVICE void arrive_with_copies(u32 barrier) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory"); }
// Until the thread's own are there.
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Makes those since the last group a group of their own; until all but the last GROUPS of the thread's groups are there.
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GROUPS> DEVICE void wait_for_groups() { asm volatile("cp.async.wait_group %0;" :: "n"(GROUPS) : "memory"); }

// The address of shared memory, as instructions take it.
DEVICE u32 address_of_shared(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
