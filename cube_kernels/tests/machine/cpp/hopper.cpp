// wgmma. A warpgroup's four warps issue a product together; each multiplies its own sixteen rows. What it reads of shared memory, and the
// registers of both operands, are its own until a wait for its group.
#include "machine.h"

#include <algorithm>

namespace machine {

namespace {

struct Product {
  Wgmma of;
  u64 a, b;
  bool accumulate, in_registers;
  u32 group;
  float* d[WARPGROUP];
  u32 registers[WARPGROUP][4];
};
struct Warpgroup {
  Meeting meeting;
  Product next;
  std::deque<Product> queue;
};
std::vector<Warpgroup> warpgroups;

int bytes_of(const Wgmma& of) { return of.kind == KIND_E5M2 ? 1 : 2; }

// As all lanes of a warp see it.
struct Least {
  Epochs seen, over, proxied;
  explicit Least(u32 warp) {
    const Clock& first = fibers[warp * WARP].clock;
    seen = first.seen, over = first.over, proxied = first.proxied;
    for (u32 i = warp * WARP + 1; i < (warp + 1) * WARP; i++) {
      lower(seen, fibers[i].clock.seen), lower(over, fibers[i].clock.over), lower(proxied, fibers[i].clock.proxied);
    }
  }
  static void lower(Epochs& to, const Epochs& from) {
    for (size_t i = 0; i < to.size(); i++) to[i] = std::min(to[i], from[i]);
  }
};

void check_operands(const Product& p, u32 warpgroup) {
  for (u32 i = 0; i < 4; i++) {
    const u32 warp = warpgroup * 4 + i;
    const Least least(warp);
    const View view = {least.seen, least.over, least.proxied};
    const int bytes = bytes_of(p.of);
    check_matrix(decode_sm90(p.b), p.of.transposed_b, bytes, 0, p.of.n, p.of.depth, agent_of_warp(warp), p.group, view, "wgmma");
    if (!p.in_registers) check_matrix(decode_sm90(p.a), p.of.transposed_a, bytes, 16 * i, 16, p.of.depth, agent_of_warp(warp), p.group, view, "wgmma");
  }
}

// The layouts of operands and accumulators in registers.
int row_of(int thread, int j) { return thread / 32 * 16 + thread % 32 / 4 + 8 * (j & 1); }

void multiply(const Product& p) {
  const int depth = p.of.depth, n = p.of.n, per_word = 4 / bytes_of(p.of);
  static std::vector<float> left, right, sums;
  left.resize(64 * depth), right.resize(n * depth), sums.resize(64 * n);
  gather(decode_sm90(p.b), p.of.transposed_b, p.of.kind, n, depth, right.data());
  if (!p.in_registers) gather(decode_sm90(p.a), p.of.transposed_a, p.of.kind, 64, depth, left.data());
  else
    for (int t = 0; t < 128; t++)
      for (int j = 0; j < 4; j++)
        for (int e = 0; e < per_word; e++)
          left[row_of(t, j) * depth + (t % 4 + 4 * (j >> 1)) * per_word + e] = number(p.registers[t][j] >> e * (32 / per_word), p.of.kind);
  // By k first, so that columns are the host's vectors.
  static std::vector<float> turned;
  turned.resize(n * depth);
  for (int c = 0; c < n; c++)
    for (int k = 0; k < depth; k++) turned[k * n + c] = right[c * depth + k];
  std::fill(sums.begin(), sums.end(), 0.f);
  for (int r = 0; r < 64; r++)
    for (int k = 0; k < depth; k++) {
      float* __restrict to = &sums[r * n];
      const float* __restrict from = &turned[k * n];
      const float x = left[r * depth + k];
      for (int c = 0; c < n; c++) to[c] += x * from[c];
    }
  for (int t = 0; t < 128; t++)
    for (int j = 0; j < n / 2; j++) {
      const float sum = sums[row_of(t, j >> 1) * n + j / 4 * 8 + t % 4 * 2 + (j & 1)];
      p.d[t][j] = p.accumulate ? p.d[t][j] + sum : sum;
    }
}

struct Handed { u32 a[4], b[2]; };

void check_written(const void* at, u32 words) {
  const Fiber& f = self();
  const size_t first = ((const u8*)at - f.stack) / 4;
  for (u32 i = 0; i < words; i++)
    if (first + i < STACK / 4 && f.written[first + i] == f.fences) fault("wgmma: a register has been written since the last wgmma.fence");
}

}  // namespace

void reset_hopper() {
  warpgroups.clear();
  warpgroups.resize(launch.block / WARPGROUP);
}
bool perform_product() {
  std::vector<Warpgroup*> busy;
  for (Warpgroup& g : warpgroups)
    if (!g.queue.empty()) busy.push_back(&g);
  if (busy.empty()) return false;
  Warpgroup& g = *busy[dice() % busy.size()];
  multiply(g.queue.front());
  g.queue.pop_front();
  return true;
}
void finish_hopper() {
  for (Warpgroup& g : warpgroups)
    if (!g.queue.empty()) fault("the CTA ends with products in flight");
}

}  // namespace machine

using namespace machine;

extern "C" {

void m_wgmma(const Wgmma* of, float* d, const u32* const* a, u64 a_matrix, u64 b, int accumulate) {
  Fiber& f = self();
  Warpgroup& g = warpgroups[me / WARPGROUP];
  const u32 group = f.committed + 1;
  // Products of one accumulator follow each other without a fence.
  check_written(d, of->n / 2);
  use_stack(d, of->n / 2, group, true);
  Product& next = g.next;
  next.d[me % WARPGROUP] = d;
  for (int i = 0; a && i < 4; i++) {
    check_written(a[i], 1);
    use_stack(a[i], 1, group, false);
    next.registers[me % WARPGROUP][i] = *a[i];
  }
  if (!a && of->transposed_a && of->kind == KIND_E5M2) fault("wgmma of bytes that are transposed");
  const u32 check = (u32)(b ^ b >> 32 ^ a_matrix * 31 ^ (u64)accumulate << 31 ^ group * 8191 ^ of->n);
  if (!meet(g.meeting, WARPGROUP, NOTHING, check)) return;
  next.of = *of, next.a = a_matrix, next.b = b, next.accumulate = accumulate, next.in_registers = a, next.group = group;
  check_operands(next, me / WARPGROUP);
  g.queue.push_back(next);
  if (launch.policy == EARLY) perform_product();
}
// What the lanes of a warp hand to a product, twice: none is a whole product ahead of another.
void m_mma_sync(float* d, const u32* a, u32 b0, u32 b1, Kind kind) {
  static std::vector<Handed> handed;
  static std::vector<u32> turns;
  handed.resize(2 * launch.block), turns.resize(launch.block);
  Handed* const of_warp = &handed[2 * (me / WARP * WARP)];
  const u32 turn = turns[me]++ % 2, lane = me % WARP;
  of_warp[2 * lane + turn] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  meet_warp(8);
  for (u32 i = 0; i < 4; i++) {
    const u32 row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    float sum = 0.f;
    for (u32 k = 0; k < 16; k++) {
      const Handed &left = of_warp[2 * (row % 8 * 4 + k % 8 / 2) + turn], &right = of_warp[2 * (column * 4 + k % 8 / 2) + turn];
      sum += number(left.a[k / 8 * 2 + row / 8] >> 16 * (k % 2), kind) * number(right.b[k / 8] >> 16 * (k % 2), kind);
    }
    d[i] += sum;
  }
}
// Registers that were written before it may be operands of what comes after it.
void m_wgmma_fence() {
  meet_warp(6);
  self().fences++;
}
void m_wgmma_commit() {
  meet_warp(7);
  self().committed++;
}
void m_wgmma_wait(int pending) {
  meet_warp(0x10000 + pending);
  Fiber& f = self();
  if (f.committed < (u32)pending) return;
  const u32 over = f.committed - pending;
  Warpgroup& g = warpgroups[me / WARPGROUP];
  while (!g.queue.empty() && g.queue.front().group <= over) {
    multiply(g.queue.front());
    g.queue.pop_front();
  }
  leave_stack(over);
  const Agent agent = agent_of_warp(me / WARP);
  f.clock.seen[agent] = std::max(f.clock.seen[agent], over);
  f.clock.over[agent] = std::max(f.clock.over[agent], over);
}

}
