// mbarriers with their phases, arrivals and bytes; TMA and cp.async; the order in which what is asynchronous is done.
#include "machine.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

namespace machine {

namespace {
std::map<u32, Barrier> barriers;
std::deque<Operation> operations;
bool has_init_fence;
// Copies of a thread in the order of their issue, numbered from 1 on, and how many of them are done; the barriers that get an arrival behind
// so many of them, and how many have got it.
struct Copy { u32 to, bytes; const u8* from; };
struct Arrival { u32 barrier, copies; };
struct Copies {
  std::vector<Copy> all;
  std::vector<Arrival> arrivals;
  std::vector<u32> groups;   // copies up to the end of each
  u32 done, arrived;
};
std::vector<Copies> copies;
// Maps in global memory that some threads have acquired, and when. The fence counts for who comes after it.
std::map<const TensorMap*, std::vector<std::pair<u32, u32>>> acquired;
bool is_acquired(const TensorMap* map) {
  for (const auto& [thread, epoch] : acquired[map])
    if (thread == me || self().clock.seen[thread] >= epoch) return true;
  return false;
}

void perform(size_t index) {
  const auto work = std::move(operations[index].perform);
  operations.erase(operations.begin() + index);
  work();
}
// Of a queue only the oldest.
std::vector<size_t> eligible() {
  std::vector<size_t> result;
  for (size_t i = 0; i < operations.size(); i++) {
    bool first = true;
    for (size_t j = 0; j < i && operations[i].queue >= 0; j++) first = first && operations[j].queue != operations[i].queue;
    if (first) result.push_back(i);
  }
  return result;
}
bool is_wanted(u32 barrier) {
  for (const Fiber& f : fibers)
    if (!f.done && f.wait.kind == Wait::BARRIER && f.wait.barrier == barrier && !is_open(barrier, f.wait.parity)) return true;
  return false;
}
// Those that somebody waits for, themselves or something behind them in their queue: the rest arrives when nothing else is left.
std::vector<size_t> wanted(const std::vector<size_t>& of) {
  std::vector<size_t> result;
  for (size_t i : of) {
    bool some = false;
    for (size_t j = i; j < operations.size() && !some; j++) {
      const bool behind = j == i || (operations[i].queue >= 0 && operations[j].queue == operations[i].queue);
      some = behind && operations[j].barrier && is_wanted(operations[j].barrier);
    }
    if (some) result.push_back(i);
  }
  return result;
}
}  // namespace

bool perform_one() {
  std::vector<size_t> of = eligible();
  if (of.empty()) return false;
  if (launch.policy == LATE) {
    const std::vector<size_t> first = wanted(of);
    if (!first.empty()) of = first;
  }
  perform(of[dice() % of.size()]);
  return true;
}
void enqueue(int queue, u32 barrier, std::function<void()> work) {
  operations.push_back({queue, barrier, std::move(work)});
  if (launch.policy == EARLY) while (perform_one()) {}
}
void reset_copies() {
  barriers.clear();
  operations.clear();
  has_init_fence = false;
  acquired.clear();
  copies.assign(launch.block, {});
}
void finish_copies() {
  for (u32 i = 0; i < copies.size(); i++)
    if (copies[i].done < copies[i].all.size()) fault_of(i, "the thread ends with copies that nobody has waited for");
}
static void copy_up_to(u32 thread, u32 count) {
  for (u32& done = copies[thread].done; done < count; done++) {
    const Copy& copy = copies[thread].all[done];
    if (copy.from) memcpy(at_shared(copy.to), copy.from, copy.bytes);
    else memset(at_shared(copy.to), 0, copy.bytes);
  }
}
static void arrive_for(u32 thread, const Arrival& arrival) {
  copy_up_to(thread, arrival.copies);
  Barrier& b = barrier_at(arrival.barrier);
  if (!b.pending) fault_of(thread, "one arrival too many at the barrier at %u, by cp.async", arrival.barrier - SHARED);
  const Agent agent = agent_of_copies(thread / WARP);
  for (Epochs* of : {&b.gathered.seen, &b.gathered.over}) (*of)[agent] = std::max((*of)[agent], arrival.copies);
  b.pending--;
  settle(arrival.barrier);
}

Barrier& barrier_at(u32 address) {
  const auto found = barriers.find(address);
  if (found == barriers.end()) fault("there is no barrier at %d", (int)(address - SHARED));
  return found->second;
}
void settle(u32 address) {
  Barrier& b = barrier_at(address);
  if (b.pending || b.bytes) return;
  std::swap(b.given[b.phase & 1], b.gathered);
  clear(b.gathered);
  b.phase++;
  b.pending = b.expected;
}
bool is_open(u32 barrier, u32 parity) { return (barrier_at(barrier).phase & 1) != parity; }

static bool is_in_buffer(const void* at) {
  for (size_t i = 0; i < launch_buffers; i++)
    if ((size_t)((const u8*)at - buffers[i].at) < buffers[i].bytes) return true;
  return false;
}

static void check_map(const TensorMap& map, u32 destination) {
  bool is_right = (u64)map.base % 16 == 0 && map.steps[0] == 1;
  for (u64 stride : map.strides) is_right = is_right && stride % 16 == 0 && stride > 0 && stride < 1ull << 40;
  for (int i = 0; i < 5; i++)
    is_right = is_right && map.sizes[i] > 0 && map.sizes[i] <= 1ull << 32 && map.box[i] > 0 && map.box[i] <= 256 && map.steps[i] > 0 && map.steps[i] <= 8;
  const u32 width = map.box[0] * map.element;
  if (!is_right || width % 16 || (map.swizzle && width > map.swizzle)) fault("cuTensorMapEncodeTiled would refuse a map");
  // Fewer bytes than the swizzle is wide would leave gaps.
  if (map.swizzle && width != map.swizzle) fault("a box that is not as wide as its swizzle");
  if (destination % (map.swizzle ? 8 * map.swizzle : 128)) fault("TMA to %d of shared memory", (int)(destination - SHARED));
}

// A row of the innermost dimension, whose bytes begin at `to` before they are swizzled.
static void bring_row(const TensorMap& map, const u8* source, bool inside, int from, u32 to, bool has_waited) {
  u8 row[256 * 4] = {};
  const i64 first = std::max(0, -from), last = std::min((i64)map.box[0], (i64)map.sizes[0] - from);
  if (inside && first < last) {
    const u8* at = source + (from + first) * (i64)map.element;
    check_global(at, (last - first) * map.element, false, has_waited, "TMA");
    memcpy(row + first * map.element, at, (last - first) * map.element);
  }
  for (u32 byte = 0; byte < map.box[0] * map.element; byte += 16) {
    u32 place = to + byte;
    if (map.swizzle) place ^= (place >> 7 & (map.swizzle / 16 - 1)) << 4;
    memcpy(at_shared(place), row + byte, 16);
  }
}
// `has_waited`: for the launch ahead, the thread that asked for it.
static void bring_box(const TensorMap& map, const std::array<int, 5>& from, u32 destination, bool has_waited) {
  u32 count[5], i[5], row = 0;
  for (int a = 0; a < 5; a++) count[a] = (map.box[a] + map.steps[a] - 1) / map.steps[a];
  for (i[4] = 0; i[4] < count[4]; i[4]++)
    for (i[3] = 0; i[3] < count[3]; i[3]++)
      for (i[2] = 0; i[2] < count[2]; i[2]++)
        for (i[1] = 0; i[1] < count[1]; i[1]++, row++) {
          const u8* source = map.base;
          bool inside = true;
          for (int a = 1; a < 5; a++) {
            const i64 place = from[a] + (i64)i[a] * map.steps[a];
            inside = inside && place >= 0 && (u64)place < map.sizes[a];
            source += place * (i64)map.strides[a - 1];
          }
          bring_row(map, source, inside, from[0], destination + row * map.box[0] * map.element, has_waited);
        }
}

}  // namespace machine

using namespace machine;

extern "C" {

void m_barrier_init(u32 barrier, u32 arrivals) {
  shared_in_range(barrier, 8);
  if (barrier % 8 || !arrivals) fault("a barrier of %u arrivals at %d", arrivals, (int)(barrier - SHARED));
  if (barriers.count(barrier)) fault("the barrier at %d is initialised again", (int)(barrier - SHARED));
  check_shared(barrier, 8, me, epoch_of(me), {self().clock.seen, self().clock.over, self().clock.proxied}, true, false, "mbarrier.init");
  barriers[barrier] = {arrivals, arrivals, 0, 0, agent_of_barrier(barrier), me, epoch_of(me), empty_clock(), {empty_clock(), empty_clock()}};
}
void m_barrier_init_fence() { has_init_fence = true; }

// Whoever uses a barrier has to have seen its initialisation.
static Barrier& used(u32 barrier) {
  Barrier& b = barrier_at(barrier);
  if (b.maker != me && self().clock.seen[b.maker] < b.made) fault("race: the barrier at %u is used, not ordered with its initialisation", barrier - SHARED);
  return b;
}
void m_barrier_arrive(u32 barrier, u32 bytes) {
  Barrier& b = used(barrier);
  if (!b.pending) fault("one arrival too many at the barrier at %u", barrier - SHARED);
  b.bytes += bytes;
  release(b.gathered);
  b.pending--;
  settle(barrier);
}
void m_barrier_wait(u32 barrier, u32 parity) {
  used(barrier);
  Wait& wait = self().wait;
  wait.kind = Wait::BARRIER, wait.barrier = barrier, wait.parity = parity;
  if (!is_open(barrier, parity)) sleep_here();
  wait.kind = Wait::NONE;
  acquire(barrier_at(barrier).given[parity & 1]);
}
// What the thread knows of by now is seen by the asynchronous proxy; what it writes next is not.
void m_proxy_fence() {
  Clock& clock = self().clock;
  join(clock.proxied, clock.seen);
  clock.over[me] = ++clock.seen[me];
}

void m_tma_acquire(const TensorMap* map) {
  check_global((const u8*)map, sizeof *map, false, self().has_waited, "fence.proxy.tensormap");
  acquired[map].push_back({me, epoch_of(me)});
}

void m_tma(u32 destination, const TensorMap* map, u32 barrier, const int* at) {
  if (is_in_buffer(map) && !is_acquired(map)) fault("TMA by a map in global memory that nobody has acquired before");
  check_map(*map, destination);
  u32 bytes = map->element * map->box[0];
  for (int a = 1; a < 5; a++) bytes *= (map->box[a] + map->steps[a] - 1) / map->steps[a];
  shared_in_range(destination, bytes);
  if (!has_init_fence) fault("TMA to barriers without fence.mbarrier_init");
  const Barrier& b = used(barrier);
  const u32 phase = b.phase;
  const Clock& clock = self().clock;
  check_shared(destination, bytes, b.agent, phase + 1, {clock.seen, clock.over, clock.proxied}, true, true, "TMA");
  memset(at_shared(destination), JUNK, bytes);
  const std::array<int, 5> from = {at[0], at[1], at[2], at[3], at[4]};
  enqueue(-1, barrier, [=, map = *map, has_waited = self().has_waited] {
    bring_box(map, from, destination, has_waited);
    Barrier& b = barrier_at(barrier);
    if (b.phase != phase) fault("%u bytes arrive at the barrier at %u, which does not expect them", bytes, barrier - SHARED);
    b.bytes -= bytes;
    b.gathered.seen[b.agent] = b.gathered.over[b.agent] = phase + 1;
    settle(barrier);
  });
}

// A thread's writes that are seen by who has waited for them, as a warp's: lanes issue as many.
void m_copy(u32 to, const void* from, u32 bytes) {
  if (to % bytes || (size_t)from % bytes) fault("cp.async of %u bytes to %u of shared memory", bytes, to - SHARED);
  if (from) check_global((const u8*)from, bytes, false, self().has_waited, "cp.async");
  shared_in_range(to, bytes);
  Copies& mine = copies[me];
  mine.all.push_back({to, bytes, (const u8*)from});
  const Clock& clock = self().clock;
  check_shared(to, bytes, agent_of_copies(me / WARP), (u32)mine.all.size(), {clock.seen, clock.over, clock.proxied}, true, false, "cp.async");
  memset(at_shared(to), JUNK, bytes);
  if (launch.policy == EARLY) copy_up_to(me, (u32)mine.all.size());
}
// The barrier gets an arrival when all copies so far are done, behind those of the thread's copies before. It says nothing of what else the
// thread has done.
void m_copy_arrive(u32 barrier) {
  used(barrier);
  Copies& mine = copies[me];
  mine.arrivals.push_back({barrier, (u32)mine.all.size()});
  enqueue(-1, barrier, [thread = me, count = mine.arrivals.size()] {
    Copies& its = copies[thread];
    while (its.arrived < count) arrive_for(thread, its.arrivals[its.arrived++]);
  });
}
static void wait_up_to(u32 count) {
  copy_up_to(me, count);
  const Agent agent = agent_of_copies(me / WARP);
  for (Epochs* of : {&self().clock.seen, &self().clock.over}) (*of)[agent] = std::max((*of)[agent], count);
}
void m_copy_wait() { wait_up_to((u32)copies[me].all.size()); }
void m_copy_commit() { copies[me].groups.push_back((u32)copies[me].all.size()); }
void m_copy_wait_groups(u32 groups) {
  const std::vector<u32>& of = copies[me].groups;
  if (of.size() > groups) wait_up_to(of[of.size() - 1 - groups]);
}

}
