// Vector clocks: whether two accesses are ordered by what threads have waited for, whatever order the fibers ran in.
//
// Barriers, mbarriers and __syncwarp pass on all that a thread knows. Shuffles, votes and instructions that a warp does together
// pass on only that reads are over: registers have come, but no write is promised to be seen. A thread's write is seen by TMA and the
// tensor cores if a proxy fence came after it, by who wrote or by who knows of it.
#include "machine.h"

#include <algorithm>

namespace machine {

static std::vector<Accesses> granules;
static std::vector<u16> initialised;  // bytes of each granule
static u32 barriers_known;

Agent agent_of_warp(u32 warp) { return launch.block + warp; }
static Agent first_barrier() { return launch.block + launch.block / WARP; }
Agent agent_of_barrier(u32) {
  if (barriers_known == BARRIERS) fault("more than %u barriers", BARRIERS);
  return first_barrier() + barriers_known++;
}
Agent agent_of_products() { return first_barrier() + BARRIERS; }
Agent agent_of_copies(u32 warp) { return agent_of_products() + 1 + warp; }
std::string name_of(Agent agent) {
  char text[80];
  if (agent < launch.block) snprintf(text, sizeof text, "thread %u (warp %u, lane %u)", agent, agent / WARP, agent % WARP);
  else if (agent < first_barrier()) snprintf(text, sizeof text, "an instruction of warp %u", agent - launch.block);
  else if (agent < agent_of_products()) snprintf(text, sizeof text, "TMA to barrier number %u", agent - first_barrier());
  else if (agent == agent_of_products()) snprintf(text, sizeof text, "a product");
  else snprintf(text, sizeof text, "cp.async of warp %u", agent - agent_of_copies(0));
  return text;
}

Clock empty_clock() {
  // Whole vectors of the host.
  const Epochs none((agent_of_copies(launch.block / WARP) + 15) / 16 * 16);
  return {none, none, none, none};
}
void clear(Epochs& of) { std::fill(of.begin(), of.end(), 0); }
void clear(Clock& of) { clear(of.seen), clear(of.over), clear(of.proxied), clear(of.told); }
void join(Epochs& to, const Epochs& from) {
  u32* __restrict a = to.data();
  const u32* __restrict b = from.data();
  for (size_t i = 0, n = to.size(); i < n; i++) a[i] = std::max(a[i], b[i]);
}
void join(Clock& to, const Clock& from) {
  join(to.seen, from.seen);
  join(to.over, from.over);
  join(to.proxied, from.proxied);
  join(to.told, from.told);
}

void release(Clock& to) {
  Clock& mine = self().clock;
  join(to, mine);
  mine.over[me] = ++mine.seen[me];
}
void acquire(const Clock& from) { join(self().clock, from); }

static const char* verb(bool writes) { return writes ? "write" : "read"; }

static void check_granule(u32 granule, u16 mask, Agent agent, u32 epoch, const View& view, bool writes, bool is_async, const char* what) {
  Accesses& known = granules[granule];
  size_t kept = 0;
  for (size_t i = 0; i < known.size(); i++) {
    const Access a = known[i];
    const bool overlaps = a.mask & mask, same = a.agent == agent;
    if (overlaps && (writes || a.writes) && !same) {
      const Epochs& order = a.writes ? view.seen : view.over;
      const u32 at = granule * 16 - SHARED;
      if (order[a.agent] < a.epoch)
        fault("race: %s %ss shared memory at %u, not ordered with its %s by %s", what, verb(writes), at, verb(a.writes), name_of(a.agent).c_str());
      if (is_async && !a.is_async && a.writes && view.proxied[a.agent] < a.epoch)
        fault("proxy: %s %ss shared memory at %u, written by %s without the proxy fence", what, verb(writes), at, name_of(a.agent).c_str());
    }
    // Copies of one phase come in any order.
    if (overlaps && writes && a.writes && same && is_async && a.epoch == epoch) fault("race: two copies of a phase write shared memory at %u", granule * 16 - SHARED);
    // What comes after this access comes after those that it has to come after.
    const bool covered = !(a.mask & ~mask) && (writes ? true : same && !a.writes);
    if (!covered) known[kept++] = a;
  }
  known.resize(kept);
  known.push_back({epoch, (u16)agent, mask, writes, is_async});
  if (writes) initialised[granule] |= mask;
  // Threads copy structures with their padding.
  else if (is_async && (initialised[granule] & mask) != mask) fault("%s reads shared memory at %u, which nobody has written", what, granule * 16 - SHARED);
}

void check_shared(u32 address, u32 bytes, Agent agent, u32 epoch, const View& view, bool writes, bool is_async, const char* what) {
  for (u32 at = address, end = address + bytes; at < end;) {
    const u32 from = at % 16, to = std::min(16u, from + end - at);
    check_granule(at / 16, (u16)((1u << to) - (1u << from)), agent, epoch, view, writes, is_async, what);
    at += to - from;
  }
}

void reset_clocks() {
  barriers_known = 0;
  granules.resize(SHARED_END / 16);
  for (Accesses& of : granules) of.clear();
  initialised.assign(SHARED_END / 16, 0);
  for (u32 i = 0; i < fibers.size(); i++) {
    Fiber& f = fibers[i];
    f.clock = empty_clock();
    f.clock.seen[i] = f.clock.over[i] = 1;
    f.tensor = f.clock.told;
  }
}

}  // namespace machine
