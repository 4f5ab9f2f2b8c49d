// Runs a kernel: cube after cube, its units as fibers on one thread, in a fixed order.
//
// `kernel FOLDER UNITS CUBES BUFFERS WRITTEN`: buffers are the files 0, 1, .. of the folder, the last WRITTEN of them are
// written back; scalars are in the file `info`. Shared memory is full of junk when a cube begins, and so is where a copy has
// been begun and not been waited for. Exits with 3 where units wait for each other in vain.

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <string>
#include <vector>

struct Index { unsigned x, y, z; };
extern "C" {
Index threadIdx, blockIdx, blockDim, gridDim;
// Of the kernel's file.
void kernel_run(void** buffers, const void* info);
char* kernel_shared();
size_t kernel_shared_bytes();
}

namespace {

constexpr unsigned PLANE = 32;
constexpr size_t STACK = 1 << 20;
// Finite as f16, bf16 and f32: the kernels compute rows again that come out as NaN, which would hide it.
constexpr int JUNK = 0x45;

struct Copy { unsigned to; const void* from; unsigned bytes; };
struct Unit {
  ucontext_t context;
  jmp_buf here;
  void* stack;
  std::vector<Copy> copies;
  bool is_started, is_done;
};
// Units that wait for each other: `arrived` of them in round `round`.
struct Meeting { unsigned arrived = 0, round = 0; };
// What units of a plane give each other: a word, and the elements of their registers, two in each (of TF32 the first alone).
struct Exchange { unsigned word[PLANE]; float left[PLANE][4][2], right[PLANE][2][2]; };

std::vector<Unit> units;
std::vector<Meeting> planes;
std::vector<Exchange> exchanges;
Meeting cube;
Meeting barriers[16];
jmp_buf scheduler;
ucontext_t starter;
unsigned me, live, progress;
void** buffers;
const void* info;

void arrive(Meeting& meeting, unsigned expected) {
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    meeting.round++;
    progress++;
  }
}
void meet(Meeting& meeting, unsigned expected) {
  const unsigned round = meeting.round;
  arrive(meeting, expected);
  while (meeting.round == round)
    if (!setjmp(units[me].here)) longjmp(scheduler, 1);
}
void meet_plane() { meet(planes[me / PLANE], PLANE); }
Exchange& exchange() { return exchanges[me / PLANE]; }

void run_unit() {
  kernel_run(buffers, info);
  units[me].is_done = true;
  live--;
  progress++;
  longjmp(scheduler, 1);
}

// The first time a unit needs a stack of its own; then jumps are enough, which unlike contexts are no calls of the system.
void resume(Unit& unit) {
  if (setjmp(scheduler)) return;
  if (unit.is_started) longjmp(unit.here, 1);
  unit.is_started = true;
  getcontext(&unit.context);
  unit.context.uc_stack.ss_sp = unit.stack;
  unit.context.uc_stack.ss_size = STACK;
  unit.context.uc_link = nullptr;
  makecontext(&unit.context, run_unit, 0);
  swapcontext(&starter, &unit.context);
}

void run_cube() {
  memset(kernel_shared(), JUNK, kernel_shared_bytes());
  cube = {};
  for (Meeting& barrier : barriers) barrier = {};
  planes.assign(units.size() / PLANE, {});
  exchanges.resize(planes.size());
  live = units.size();
  for (Unit& unit : units) {
    unit.is_started = unit.is_done = false;
    unit.copies.clear();
  }
  while (live > 0) {
    const unsigned before = progress;
    for (me = 0; me < units.size(); me++) {
      if (units[me].is_done) continue;
      threadIdx = {me, 0, 0};
      resume(units[me]);
    }
    if (progress == before) {
      fprintf(stderr, "units of cube %u wait for each other\n", blockIdx.x);
      exit(3);
    }
  }
}

enum Type { TYPE_F16, TYPE_BF16, TYPE_TF32 };

float as_float(unsigned word) {
  float value;
  memcpy(&value, &word, 4);
  return value;
}

float element(int type, unsigned word, int high) {
  if (type == TYPE_TF32) return as_float(word & ~0x1fffu);
  const unsigned short bits = high ? word >> 16 : word & 0xffff;
  if (type == TYPE_BF16) return as_float((unsigned)bits << 16);
  _Float16 value;
  memcpy(&value, &bits, 2);
  return value;
}

std::vector<char> read_file(const std::string& name) {
  FILE* file = fopen(name.c_str(), "rb");
  if (!file) {
    fprintf(stderr, "%s cannot be read\n", name.c_str());
    exit(2);
  }
  std::vector<char> bytes;
  char piece[4096];
  for (size_t n; (n = fread(piece, 1, sizeof piece, file)) > 0;) bytes.insert(bytes.end(), piece, piece + n);
  fclose(file);
  return bytes;
}

}  // namespace

extern "C" {

void machine_sync() { meet(cube, live); }
void machine_sync_plane() { meet_plane(); }
void machine_meet(unsigned barrier, unsigned expected) { meet(barriers[barrier], expected); }
void machine_arrive(unsigned barrier, unsigned expected) { arrive(barriers[barrier], expected); }
unsigned machine_lane() { return me % PLANE; }

unsigned machine_shuffle(unsigned value, unsigned lane) {
  exchange().word[me % PLANE] = value;
  meet_plane();
  const unsigned result = exchange().word[lane % PLANE];
  meet_plane();
  return result;
}

void machine_ldmatrix(int is_transposed, unsigned row, unsigned* result) {
  exchange().word[me % PLANE] = row;
  meet_plane();
  const unsigned lane = me % PLANE;
  for (int matrix = 0; matrix < 4; matrix++) {
    unsigned short pair[2];
    for (unsigned e = 0; e < 2; e++) {
      const unsigned r = is_transposed ? lane % 4 * 2 + e : lane / 4, column = is_transposed ? lane / 4 : lane % 4 * 2 + e;
      const unsigned at = exchange().word[8 * matrix + r] + 2 * column;
      if (at + 2 > kernel_shared_bytes()) {
        fprintf(stderr, "a matrix lies outside of shared memory\n");
        exit(4);
      }
      memcpy(&pair[e], kernel_shared() + at, 2);
    }
    memcpy(&result[matrix], pair, 4);
  }
  meet_plane();
}

void machine_mma(int type, const unsigned* a, const unsigned* b, const float* c, float* d) {
  const unsigned lane = me % PLANE;
  for (int high = 0; high < 2; high++) {
    for (int i = 0; i < 4; i++) exchange().left[lane][i][high] = element(type, a[i], high);
    for (int i = 0; i < 2; i++) exchange().right[lane][i][high] = element(type, b[i], high);
  }
  meet_plane();
  for (unsigned half = 0; half < 2; half++)
    for (unsigned e = 0; e < 2; e++) {
      const unsigned row = lane / 4, column = lane % 4 * 2 + e;
      float sum = 0;
      // Elements of a register. Depths are in the units of a row or column in turn, the second half of them in further registers.
      const unsigned packed = type == TYPE_TF32 ? 1 : 2;
      for (unsigned k = 0; k < 8 * packed; k++) {
        const unsigned unit = k / packed % 4, later = k / packed / 4;
        sum += exchange().left[row * 4 + unit][half + later * 2][k % packed] * exchange().right[column * 4 + unit][later][k % packed];
      }
      d[2 * half + e] = c[2 * half + e] + sum;
    }
  meet_plane();
}

void machine_copy(unsigned to, const void* from, unsigned bytes) {
  memset(kernel_shared() + to, JUNK, bytes);
  units[me].copies.push_back({to, from, bytes});
}
void machine_wait() {
  for (const Copy& copy : units[me].copies) memcpy(kernel_shared() + copy.to, copy.from, copy.bytes);
  units[me].copies.clear();
}
unsigned machine_shared_address(const void* pointer) { return (const char*)pointer - kernel_shared(); }

}

int main(int count, char** arguments) {
  if (count != 6) return 2;
  const std::string folder = std::string(arguments[1]) + "/";
  const int cubes = atoi(arguments[3]), number = atoi(arguments[4]), written = atoi(arguments[5]);
  units.resize(atoi(arguments[2]));
  for (Unit& unit : units) unit.stack = malloc(STACK);
  std::vector<std::vector<char>> files;
  std::vector<void*> pointers;
  for (int i = 0; i < number; i++) {
    files.push_back(read_file(folder + std::to_string(i)));
    // Vectors are aligned.
    void* memory = aligned_alloc(64, (files[i].size() / 64 + 1) * 64);
    memcpy(memory, files[i].data(), files[i].size());
    pointers.push_back(memory);
  }
  const std::vector<char> scalars = read_file(folder + "info");
  buffers = pointers.data();
  info = scalars.data();
  blockDim = {(unsigned)units.size(), 1, 1};
  gridDim = {(unsigned)cubes, 1, 1};
  for (int i = 0; i < cubes; i++) {
    blockIdx = {(unsigned)i, 0, 0};
    run_cube();
  }
  for (int i = number - written; i < number; i++) {
    FILE* file = fopen((folder + std::to_string(i)).c_str(), "wb");
    if (!file || fwrite(pointers[i], 1, files[i].size(), file) != files[i].size() || fclose(file)) return 2;
  }
  return 0;
}
