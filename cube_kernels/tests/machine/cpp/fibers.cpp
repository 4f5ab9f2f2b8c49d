// Threads of a CTA as fibers of one host thread: they take turns where they wait.
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace machine {

Launch launch;
u32 me, block;
std::mt19937 dice;
std::vector<Fiber> fibers;

namespace {

Meeting everyone, named[16];
std::vector<std::array<Meeting, WARP>> warps;  // of lanes, by the first of them
std::vector<Meeting> aligned;                  // of whole warps
std::vector<std::array<u32, WARP>> exchange;
jmp_buf scheduler;
ucontext_t starter;
u32 live;
void (*kernel_)(void**);
void** arguments_;

[[noreturn]] void say(u32 thread, const char* format, va_list list) {
  fprintf(stderr, "%s, cta %u, warp %u, lane %u: ", launch.name.c_str(), block, thread / WARP, thread % WARP);
  vfprintf(stderr, format, list);
  fflush(stderr);
  _exit(3);
}

bool is_ready(const Fiber& f) {
  if (f.wait.kind == Wait::BARRIER) return is_open(f.wait.barrier, f.wait.parity);
  if (f.wait.kind == Wait::MEETING) return f.wait.meeting->round != f.wait.round;
  return true;
}

void run_fiber() {
  kernel_(arguments_);
  self().done = true;
  live--;
  longjmp(scheduler, 1);
}

// The first time a fiber needs a stack of its own; then jumps are enough, which unlike contexts are no calls of the system.
void resume(Fiber& f) {
  if (setjmp(scheduler)) return;
  if (f.started) longjmp(f.here, 1);
  f.started = true;
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = STACK;
  f.context.uc_link = nullptr;
  makecontext(&f.context, run_fiber, 0);
  swapcontext(&starter, &f.context);
}

[[noreturn]] void all_wait() {
  std::string text;
  u32 last = ~0u;
  for (u32 i = 0; i < fibers.size() && text.size() < 400; i++) {
    const Fiber& f = fibers[i];
    const u32 at = f.wait.kind == Wait::BARRIER ? f.wait.barrier : 1;
    if (f.done || at == last) continue;
    last = at;
    char one[120];
    if (at == 1) snprintf(one, sizeof one, " [thread %u for others]", i);
    else {
      const Barrier& b = barrier_at(at);
      snprintf(one, sizeof one, " [thread %u for parity %u of the barrier at %u: phase %u, %u arrivals and %lld bytes short]", i, f.wait.parity, at - SHARED,
               b.phase, b.pending, b.bytes);
    }
    text += one;
  }
  fault("all wait in vain:%s", text.c_str());
}

// As __launch_bounds__ gives them to a thread.
static u32 registers_at_launch() { return std::min(65536 / (launch.ctas * launch.block) / 8 * 8, 255u); }

void start_threads() {
  everyone = Meeting();
  for (Meeting& m : named) m = Meeting();
  const u32 count = launch.block / WARP;
  warps.assign(count, {});
  aligned.assign(count, {});
  exchange.resize(count);
  live = launch.block;
  for (Fiber& f : fibers) {
    f.started = f.done = f.has_waited = f.has_registers = false;
    f.wait.kind = Wait::NONE;
    f.registers = registers_at_launch();
    f.committed = 0;
    f.uses.clear();
    if (f.stack) continue;
    f.stack = (u8*)aligned_alloc(4096, STACK);
    f.fences = 0;
    f.written = (u32*)calloc(STACK / 4, sizeof(u32));
    f.reads = (u8*)calloc(STACK / 4, 1);
    f.writes = (u8*)calloc(STACK / 4, 1);
  }
}

void end_threads() {
  u32 registers = 0;
  for (u32 i = 0; i < fibers.size(); i++) {
    const Fiber &f = fibers[i], &first = fibers[i / WARPGROUP * WARPGROUP];
    registers += f.registers;
    if (f.registers != first.registers) fault_of(i, "setmaxnreg differs within a warpgroup: %d and %d", f.registers, first.registers);
    if (!f.uses.empty()) fault_of(i, "the thread ends with products or loads in flight");
  }
  // Who asks for more waits for others to give them, in vain: there are no more than the CTA was launched with.
  if (registers > registers_at_launch() * launch.block) fault("%u registers, of %u that the CTA was launched with", registers, registers_at_launch() * launch.block);
}

}  // namespace

void fault(const char* format, ...) {
  va_list list;
  va_start(list, format);
  say(me, format, list);
}
void fault_of(u32 thread, const char* format, ...) {
  va_list list;
  va_start(list, format);
  say(thread, format, list);
}

void sleep_here() {
  if (!setjmp(self().here)) longjmp(scheduler, 1);
}

void arrive(Meeting& m, u32 expected, Order order) {
  if (m.gathered.seen.empty()) m.gathered = m.given = empty_clock();
  if (m.arrived == 0 && order == MEMORY) clear(m.gathered);
  if (m.arrived == 0 && order == EXECUTION) clear(m.gathered.over);
  if (order == MEMORY) release(m.gathered);
  if (order == EXECUTION) {
    Clock& mine = self().clock;
    join(m.gathered.over, mine.over);
    mine.over[me] = ++mine.seen[me];
  }
  if (++m.arrived < expected) return;
  m.arrived = 0;
  m.round++;
  std::swap(m.given, m.gathered);
}
bool meet(Meeting& m, u32 expected, Order order, u32 check) {
  if (m.arrived == 0) m.check = check;
  else if (m.check != check) fault("threads that have to do the same together do not: %x and %x", m.check, check);
  const u32 round = m.round;
  arrive(m, expected, order);
  const bool last = m.round != round;
  if (!last) {
    Wait& wait = self().wait;
    wait.kind = Wait::MEETING, wait.meeting = &m, wait.round = round;
    sleep_here();
    wait.kind = Wait::NONE;
  }
  // The next round cannot be over before all have left this one: they are needed for it.
  if (order == MEMORY) acquire(m.given);
  if (order == EXECUTION) join(self().clock.over, m.given.over);
  return last;
}
bool last_of_warp(u32 check) { return meet(aligned[me / WARP], WARP, EXECUTION, check); }
void meet_warp(u32 check) { last_of_warp(check); }

void run_cta(void (*kernel)(void**), void** arguments) {
  kernel_ = kernel, arguments_ = arguments;
  fibers.resize(launch.block);
  start_threads();
  reset_clocks();
  reset_static();
  reset_copies();
  reset_hopper();
  reset_blackwell();
  std::vector<u32> order(launch.block / WARP);
  for (u32 i = 0; i < order.size(); i++) order[i] = i;
  while (live > 0) {
    bool ran = false;
    if (launch.policy == RANDOM) std::shuffle(order.begin(), order.end(), dice);
    for (u32 warp : order) {
      for (u32 i = warp * WARP; i < (warp + 1) * WARP; i++) {
        Fiber& f = fibers[i];
        if (f.done || !is_ready(f)) continue;
        me = i;
        ran = true;
        resume(f);
      }
      // What is done so may be what a thread waits for whose turn is over.
      if (launch.policy == RANDOM && dice() % 8 == 0) ran = (dice() % 2 ? perform_one() : perform_product()) || ran;
    }
    if (!ran && !perform_one()) all_wait();
  }
  end_threads();
  finish_hopper();
  while (perform_one()) {}
  finish_copies();
  finish_blackwell();
}

}  // namespace machine

using namespace machine;

static Meeting& meeting_of(u32 lanes) {
  if (!(lanes >> me % WARP & 1)) fault("lane %u is none of the lanes %08x that it meets", me % WARP, lanes);
  return warps[me / WARP][__builtin_ctz(lanes)];
}

extern "C" {

Index m_thread() { return {me, 0, 0}; }
Index m_block() { return {block, 0, 0}; }
Index m_block_extent() { return {launch.block, 1, 1}; }
Index m_grid_extent() { return {launch.grid, 1, 1}; }

// Threads that have ended are not waited for.
void m_sync() { meet(everyone, live, MEMORY); }
void m_named(u32 id, u32 threads, int waits) {
  if (id > 15 || threads % WARP || threads > launch.block) fault("barrier %u of %u threads", id, threads);
  if (waits) meet(named[id], threads, MEMORY);
  else arrive(named[id], threads, MEMORY);
}
u32 m_exchange(u32 lanes, u32 value, u32 lane) {
  const u32 count = __builtin_popcount(lanes);
  exchange[me / WARP][me % WARP] = value;
  meet(meeting_of(lanes), count, EXECUTION, lanes ^ 1);
  const u32 result = exchange[me / WARP][lane % WARP];
  if (!(lanes >> lane % WARP & 1)) fault("a shuffle from lane %u, which is none of %08x", lane % WARP, lanes);
  meet(meeting_of(lanes), count, NOTHING, lanes ^ 2);
  return result;
}
u32 m_ballot(u32 lanes, int predicate) {
  const u32 count = __builtin_popcount(lanes);
  exchange[me / WARP][me % WARP] = predicate != 0;
  meet(meeting_of(lanes), count, EXECUTION, lanes ^ 3);
  u32 bits = 0;
  for (u32 i = 0; i < WARP; i++) bits |= (lanes >> i & 1 & exchange[me / WARP][i]) << i;
  meet(meeting_of(lanes), count, NOTHING, lanes ^ 4);
  return bits;
}
void m_sync_lanes(u32 lanes) { meet(meeting_of(lanes), __builtin_popcount(lanes), MEMORY, lanes ^ 5); }
void m_converge() { meet_warp(1); }

// As a whole warp, and all warps of a warpgroup alike.
void m_setmaxnreg(int registers, int more) {
  meet_warp(0x100 + registers);
  Fiber& f = self();
  if (registers % 8 || registers < 24 || registers > 256) fault("setmaxnreg of %d registers", registers);
  if (more ? registers < f.registers : registers > f.registers) fault("setmaxnreg from %d to %d registers the wrong way", f.registers, registers);
  f.registers = registers;
}

}
