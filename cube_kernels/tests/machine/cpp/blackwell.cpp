// tcgen05, of one CTA: tensor memory by lane and column, its loads and stores, and products that one thread issues.
//
// A warp reaches its own 32 lanes. Loads and stores are asynchronous until a wait of their kind. What one thread does with tensor memory and
// another one after it needs a fence before the synchronisation and a fence after it; a commit has the first built in. Products are done in
// the order of their issue. An access of a warp is its agent's; a lane that has fenced speaks for its warp.
#include "machine.h"

#include <algorithm>

namespace machine {

unsigned long long ordered_pairs;  // products over what an earlier one reads: in order only as all are done in the order of issue

namespace {

constexpr u32 LANES = 128, COLUMNS = 512;
struct Touch { u32 epoch; Agent agent; bool writes; };
struct Cells {                    // a column of a warp's 32 lanes
  std::vector<Touch> touches;
  u16 loads, stores;              // of threads, in flight
  bool initialised;
};
struct Pending { u32* to; u32 count, column; bool stores; std::vector<u32> values; };

u32 words[LANES][COLUMNS];
Cells cells[4][COLUMNS];
u32 columns;
bool relinquished;
std::vector<std::vector<Pending>> pending;     // of each thread
std::vector<u32> issued, completed[2];         // of each warp: accesses; the last load and store that was waited for
u32 products, issuer;

u32 chunk_of(u32 thread) { return thread / WARP % 4; }
Cells& cell_at(u32 chunk, u32 column, const char* who) {
  if (column >= columns) fault("%s: column %u of tensor memory is not allocated", who, column);
  return cells[chunk][column];
}

// An access of an agent, by this thread.
void touch(Cells& c, u32 column, Agent agent, u32 epoch, bool writes, const char* who) {
  size_t kept = 0;
  const Epochs& order = self().tensor;
  for (const Touch t : c.touches) {
    const bool same = t.agent == agent;
    if ((writes || t.writes) && !same && order[t.agent] < t.epoch)
      fault("race: %s %s column %u of tensor memory, not ordered by fences with what %s has %s", who, writes ? "writes" : "reads", column,
            name_of(t.agent).c_str(), t.writes ? "written" : "read");
    if (!(writes || (same && !t.writes))) c.touches[kept++] = t;
  }
  c.touches.resize(kept);
  c.touches.push_back({epoch, agent, writes});
  if (writes) c.initialised = true;
  else if (!c.initialised) fault("%s reads column %u of tensor memory, which nobody has written", who, column);
}

// A load or a store of this warp: the first lane to come records it for all.
void touch_warp(u32 first, u32 count, bool stores) {
  const u32 warp = me / WARP;
  const char* who = stores ? "tcgen05.st" : "tcgen05.ld";
  for (u32 c = first; c < first + count; c++) {
    Cells& cell = cell_at(chunk_of(me), c, who);
    if (cell.stores || (stores && cell.loads)) fault("%s of column %u, of which a %s is in flight", who, c, cell.stores ? "store" : "load");
    touch(cell, c, agent_of_warp(warp), issued[warp] + 1, stores, who);
  }
}
void check_lane(u32 address, const char* who) {
  if (address >> 16 != chunk_of(me) * WARP) fault("%s of lane %u by warp %u of its warpgroup", who, address >> 16, chunk_of(me));
}

}  // namespace

void reset_blackwell() {
  columns = 0, relinquished = false, products = 0, issuer = ~0u;
  for (auto& chunk : cells)
    for (Cells& c : chunk) c = {};
  memset(words, JUNK, sizeof words);
  pending.assign(launch.block, {});
  for (auto* of : {&issued, &completed[0], &completed[1]}) of->assign(launch.block / WARP, 0);
}
void finish_blackwell() {
  if (columns) fault("tensor memory is not freed");
  for (u32 i = 0; i < pending.size(); i++)
    if (!pending[i].empty()) fault_of(i, "the thread ends with tensor memory in flight");
}

}  // namespace machine

using namespace machine;

extern "C" {

void m_tmem_alloc(u32 destination, u32 count) {
  if (count < 32 || count > COLUMNS || count & (count - 1)) fault("tcgen05.alloc of %u columns", count);
  if (!last_of_warp(0x20000 + count)) return;
  if (columns || relinquished) fault("tensor memory is allocated twice, or after it was relinquished");
  columns = count;
  const u32 address = 0;
  shared_in_range(destination, 4);
  const Clock& clock = self().clock;
  check_shared(destination, 4, me, epoch_of(me), {clock.seen, clock.over, clock.proxied}, true, false, "tcgen05.alloc");
  memcpy(at_shared(destination), &address, 4);
}
void m_tmem_relinquish() {
  if (last_of_warp(11)) relinquished = true;
}
void m_tmem_free(u32 address, u32 count) {
  if (!last_of_warp(12)) return;
  if (address || count != columns) fault("%u columns from %u on are freed, of %u", count, address, columns);
  for (auto& chunk : cells)
    for (u32 c = 0; c < columns; c++) {
      touch(chunk[c], c, agent_of_warp(me / WARP), issued[me / WARP] + 1, true, "tcgen05.dealloc");
      if (chunk[c].loads || chunk[c].stores) fault("tensor memory is freed while in use");
    }
  columns = 0;
}

void m_tmem_fence(int after) {
  Fiber& f = self();
  if (after) return join(f.tensor, f.clock.told);
  // All that this thread has seen fenced, and what its warp has done and waited for.
  join(f.clock.told, f.tensor);
  const u32 warp = me / WARP, done = std::max(completed[0][warp], completed[1][warp]);
  u32& told = f.clock.told[agent_of_warp(warp)];
  told = std::max(told, done);
}

void m_tmem_load(u32* registers, u32 count, u32 address) {
  const u32 column = address & 0xffff;
  check_lane(address, "tcgen05.ld");
  // Each lane has to have fenced.
  touch_warp(column, count, false);
  use_stack(registers, count, ~0u, true);
  pending[me].push_back({registers, count, column, false, {}});
  for (u32 i = 0; i < count; i++) memset(&registers[i], JUNK, 4);
  if (!last_of_warp(0x30000000 + address)) return;
  issued[me / WARP]++;
  for (u32 c = column; c < column + count; c++) cells[chunk_of(me)][c].loads++;
}
void m_tmem_store(u32 address, const u32* registers, u32 count) {
  const u32 column = address & 0xffff;
  check_lane(address, "tcgen05.st");
  touch_warp(column, count, true);
  pending[me].push_back({nullptr, count, column, true, std::vector<u32>(registers, registers + count)});
  for (u32 c = column; c < column + count; c++) memset(&words[me % LANES][c], JUNK, 4);
  if (!last_of_warp(0x40000000 + address)) return;
  issued[me / WARP]++;
  for (u32 c = column; c < column + count; c++) cells[chunk_of(me)][c].stores++;
}
void m_tmem_wait(int stores) {
  const bool last = last_of_warp(20 + stores);
  std::vector<Pending>& mine = pending[me];
  std::vector<Pending> left;
  for (Pending& p : mine) {
    if (p.stores != (stores != 0)) {
      left.push_back(std::move(p));
      continue;
    }
    for (u32 j = 0; j < p.count; j++) {
      u32& word = words[me % LANES][p.column + j];
      Cells& cell = cells[chunk_of(me)][p.column + j];
      if (last) stores ? cell.stores-- : cell.loads--;
      if (stores) word = p.values[j];
      else p.to[j] = word;
    }
  }
  if (!stores) leave_stack(~0u);
  mine = std::move(left);
  completed[stores != 0][me / WARP] = issued[me / WARP];
}

void m_mma(u32 d, int a_in_tmem, u64 a, u64 b, u32 instruction, u32 accumulate) {
  const int n = (int)(instruction >> 17 & 63) * 8, m = (int)(instruction >> 24 & 31) * 16;
  const bool a_mn = instruction >> 15 & 1, b_mn = instruction >> 16 & 1;
  const u32 a_type = instruction >> 7 & 7, b_type = instruction >> 10 & 7;
  if (m != 128) fault("tcgen05.mma of %d rows is not modelled", m);
  if (n < 16 || n > 256 || n % 16) fault("tcgen05.mma of %d columns", n);
  if ((instruction >> 4 & 3) != 1) fault("tcgen05.mma: results are not f32");
  if (a_type > 1 || b_type != a_type) fault("tcgen05.mma of types %u and %u", a_type, b_type);
  if (instruction & 0xe080604f) fault("tcgen05.mma: bits of %x that are to be zero", instruction);
  if (a_in_tmem && a_mn) fault("tcgen05.mma: a transposed operand in tensor memory");
  if (d >> 16 || (a_in_tmem && a >> 16)) fault("tcgen05.mma begins at lane 0");
  // A commit covers what its thread has issued.
  if (issuer == ~0u) issuer = me;
  if (issuer != me) fault("products of threads %u and %u", issuer, me);
  const u32 number_ = ++products, column_a = (u32)a & 0xffff, column_d = d;
  const Kind kind = a_type ? KIND_BF16 : KIND_F16;
  const Clock& clock = self().clock;
  const View view = {clock.seen, clock.over, clock.proxied};
  const Matrix mb = decode_sm100(b), ma = a_in_tmem ? Matrix{} : decode_sm100(a);
  check_matrix(mb, b_mn, 2, 0, n, 16, agent_of_products(), number_, view, "tcgen05.mma");
  if (!a_in_tmem) check_matrix(ma, a_mn, 2, 0, 128, 16, agent_of_products(), number_, view, "tcgen05.mma");
  for (u32 chunk = 0; chunk < 4; chunk++) {
    for (u32 c = column_a; a_in_tmem && c < column_a + 8; c++) {
      Cells& cell = cell_at(chunk, c, "tcgen05.mma");
      if (cell.stores) fault("a product reads column %u while a store is in flight", c);
      touch(cell, c, agent_of_products(), number_, false, "tcgen05.mma");
    }
    for (u32 c = column_d; c < column_d + n; c++) {
      Cells& cell = cell_at(chunk, c, "tcgen05.mma");
      if (cell.loads || cell.stores) fault("a product writes column %u while threads use it", c);
      if (accumulate && !cell.initialised) fault("a product adds to column %u, which nobody has written", c);
      for (const Touch& t : cell.touches)
        if (!chunk && t.agent == agent_of_products() && !t.writes && self().tensor[t.agent] < t.epoch) ordered_pairs++;
      touch(cell, c, agent_of_products(), number_, true, "tcgen05.mma");
    }
  }
  enqueue(0, 0, [=] {
    std::vector<float> left(128 * 16), right(n * 16), turned(16 * n);
    gather(mb, b_mn, kind, n, 16, right.data());
    for (int c = 0; c < n; c++)
      for (int k = 0; k < 16; k++) turned[k * n + c] = right[c * 16 + k];
    if (!a_in_tmem) gather(ma, a_mn, kind, 128, 16, left.data());
    for (int r = 0; a_in_tmem && r < 128; r++)
      for (int k = 0; k < 16; k++) left[r * 16 + k] = number(words[r][column_a + k / 2] >> k % 2 * 16, kind);
    std::vector<float> sums(n);
    for (int r = 0; r < 128; r++) {
      std::fill(sums.begin(), sums.end(), 0.f);
      for (int k = 0; k < 16; k++)
        for (int c = 0; c < n; c++) sums[c] += left[r * 16 + k] * turned[k * n + c];
      for (int c = 0; c < n; c++) {
        u32& word = words[r][column_d + c];
        word = m_bits<u32>(accumulate ? m_bits<float>(word) + sums[c] : sums[c]);
      }
    }
  });
}
// The barrier gets an arrival when all products so far are done. They began after what this thread knows to be over.
void m_mma_commit(u32 barrier) {
  barrier_at(barrier);
  if (issuer != ~0u && issuer != me) fault("thread %u commits the products of thread %u", me, issuer);
  const u32 up_to = products;
  enqueue(0, barrier, [=, over = self().clock.over] {
    Barrier& b = barrier_at(barrier);
    join(b.gathered.over, over);
    if (!b.pending) fault("one arrival too many at the barrier at %u, by tcgen05.commit", barrier - SHARED);
    const Agent agent = agent_of_products();
    for (Epochs* of : {&b.gathered.seen, &b.gathered.over, &b.gathered.told}) (*of)[agent] = std::max((*of)[agent], up_to);
    b.pending--;
    settle(barrier);
  });
}

}
