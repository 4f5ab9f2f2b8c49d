// A CTA on a CPU: what the parts of the machine know of each other.
//
//   machine.cpp    a launch, from a file: its CTAs one after the other
//   fibers.cpp     threads, which are fibers of one host thread and take turns where they wait; their meetings
//   clocks.cpp     vector clocks, and who has accessed what: races
//   access.cpp     every load and store of the kernel: shared and global memory, registers of products
//   copies.cpp     mbarriers, TMA, fences
//   layout.cpp     matrix descriptors and the place of an element
//   hopper.cpp     wgmma
//   blackwell.cpp  tcgen05 and tensor memory
//
// What is asynchronous on the chip (TMA, wgmma, tcgen05) is done at a time that the policy chooses: when it is issued, when nobody
// can go on otherwise (and of these first what somebody waits for), or at random. Not modelled: time, caches, clusters, the
// order of global memory between CTAs.
#pragma once
#include "device.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#include <setjmp.h>
#include <ucontext.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace machine {

enum Policy { EARLY, LATE, RANDOM };
struct Launch {
  u32 grid, block, shared_bytes;
  Policy policy;
  u32 seed;
  u32 ctas;                       // that a multiprocessor runs at once: they share its registers
  std::string name;
};
constexpr u32 WARP = 32, WARPGROUP = 128;
constexpr u32 SHARED_BYTES = 232448;
constexpr u32 STATIC_BYTES = 16384;  // arrays of functions
// Addresses of shared memory begin behind what is the system's.
constexpr u32 SHARED = 1024, STATIC = SHARED + SHARED_BYTES, SHARED_END = STATIC + STATIC_BYTES;
// Finite in every type: rows that come out as NaN are computed again, which would hide it.
constexpr int JUNK = 0x45;

extern Launch launch;
extern u32 me;                    // the thread that runs
extern u32 block;                 // the CTA
extern std::mt19937 dice;
// Ends the program: the first fault is all there is.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void fault_of(u32 thread, const char* format, ...) __attribute__((format(printf, 2, 3)));

// ---- clocks

// Agents are all threads of the CTA; its warps, for what each does by wgmma and tcgen05.ld and st; barriers, for TMA that arrives
// at them; the products of tcgen05; and warps once more, for the copies of cp.async. An agent numbers what it does by epochs.
typedef u32 Agent;
constexpr u32 BARRIERS = 96;  // at most: four pipelines of four stages have 80
Agent agent_of_warp(u32 warp);
Agent agent_of_barrier(u32 barrier);  // counted as they are initialised
Agent agent_of_products();
Agent agent_of_copies(u32 warp);
std::string name_of(Agent agent);

typedef std::vector<u32> Epochs;
// What a thread knows, by the last epoch of each agent: of which accesses it sees all; of which it is sure that they are over,
// which is enough to write where others have read; which writes of threads the asynchronous proxy sees; which accesses to tensor
// memory have been fenced by who did them.
struct Clock { Epochs seen, over, proxied, told; };
void join(Epochs& to, const Epochs& from);
void join(Clock& to, const Clock& from);
Clock empty_clock();
void clear(Epochs& of);
void clear(Clock& of);

// What an access is checked with.
struct View { const Epochs &seen, &over, &proxied; };
struct Access { u32 epoch; u16 agent, mask; bool writes, is_async; };  // mask: bytes of a granule
typedef std::vector<Access> Accesses;
// Bytes of shared memory by granules of 16.
void check_shared(u32 address, u32 bytes, Agent agent, u32 epoch, const View& view, bool writes, bool is_async, const char* what);
void reset_clocks();

// ---- fibers

struct Meeting { u32 arrived = 0, round = 0, check = 0; Clock gathered, given; };
enum Order { NOTHING, EXECUTION, MEMORY };  // what a meeting orders
struct Wait { enum { NONE, BARRIER, MEETING } kind = NONE; u32 barrier, parity; Meeting* meeting; u32 round; };
// A range of a thread's stack that a product or tcgen05.ld uses until its group is over.
struct Use { u32* at; u32 words, group; bool writes; };
struct Fiber {
  ucontext_t context;
  jmp_buf here;
  u8* stack = nullptr;
  bool started, done;
  bool has_waited;                // for the launch ahead
  Wait wait;
  Clock clock;
  Epochs tensor;                  // accesses to tensor memory that its own come after
  int registers;
  bool has_registers;             // by setmaxnreg
  // Of each word of the stack: the number of the wgmma fence before the last write, and uses by products in flight.
  u32* written = nullptr;
  u8 *reads = nullptr, *writes = nullptr;
  u32 fences, committed;
  std::vector<Use> uses;
};
constexpr size_t STACK = 128 << 10;
extern std::vector<Fiber> fibers;
inline Fiber& self() { return fibers[me]; }
inline u32 epoch_of(u32 thread) { return fibers[thread].clock.seen[thread]; }
void release(Clock& to);          // by this thread; what it does next is not among it
void acquire(const Clock& from);
// Waits until as many have come. Whether this thread was the last.
bool meet(Meeting& meeting, u32 expected, Order order, u32 check = 0);
void arrive(Meeting& meeting, u32 expected, Order order);
void meet_warp(u32 check);        // all of a warp, as instructions that are aligned
bool last_of_warp(u32 check);     // the same
void sleep_here();
void run_cta(void (*kernel)(void**), void** arguments);

// ---- asynchronous operations

struct Operation {
  int queue;                      // those of a queue are done in order; -1 is none
  u32 barrier;                    // which it signals, or 0
  std::function<void()> perform;
};
void enqueue(int queue, u32 barrier, std::function<void()> work);
bool perform_one();
bool is_open(u32 barrier, u32 parity);  // whether a thread that waits so can go on
void reset_copies();
void finish_copies();
void reset_hopper();
bool perform_product();           // one of wgmma, at random
void finish_hopper();
void reset_blackwell();
void finish_blackwell();
struct Barrier {
  u32 expected, pending;
  long long bytes;
  u32 phase;
  Agent agent;
  u32 maker, made;                // who has initialised it, and when
  Clock gathered, given[2];       // of the phase that is; of the last ones, by parity
};
Barrier& barrier_at(u32 address);
void settle(u32 address);

// ---- memory

u8* at_shared(u32 address);
void shared_in_range(u32 address, u32 bytes);
// `is_awaited`: the launch ahead wrote it, and a thread reads it when it has waited for that.
struct Buffer { u8* at; size_t bytes; bool is_output, is_awaited; };
extern std::vector<Buffer> buffers;
extern size_t launch_buffers;      // those of the launch, which come first: the others are its arguments
void check_global(const u8* at, size_t bytes, bool writes, bool has_waited, const char* who);
void use_stack(const void* at, u32 words, u32 group, bool writes);  // by what is asynchronous
void leave_stack(u32 up_to);      // uses of these groups are over
void reset_static();

// ---- matrices

struct Matrix { u32 start, leading, stride; int swizzle; };
Matrix decode_sm90(u64 descriptor);
Matrix decode_sm100(u64 descriptor);
// The place of an element; `row` is of M or N.
u32 element_address(const Matrix& m, bool is_mn_major, int element_bytes, int row, int k);
// Checks that an agent reads some rows of a matrix, and reads them as floats.
void check_matrix(const Matrix& m, bool is_mn_major, int bytes, int from, int rows, int depth, Agent agent, u32 epoch, const View& view, const char* what);
void gather(const Matrix& m, bool is_mn_major, Kind kind, int rows, int depth, float* to);
float number(u32 bits, Kind kind);

}  // namespace machine
