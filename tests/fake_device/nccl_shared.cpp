// The shared file of a communicator, and arithmetic on what lies in its slots.
#include "nccl_shared.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "device.h"

namespace {

constexpr size_t kHead = 4096;
constexpr int kMostRanks = 64;

thread_local char this_thread = 0;  // has an address

bool has_stopped(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  FILE* file = fopen(path.c_str(), "re");
  if (file == nullptr) return true;
  char text[512] = "";
  const size_t bytes = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  // The state comes after the name, which is in brackets.
  const char* state = bytes > 0 ? strrchr(text, ')') : nullptr;
  return state == nullptr || strchr("TtZX", state[2]) != nullptr;
}

}  // namespace

struct ncclComm::Shared {
  std::atomic<uint32_t> arrived, round, away, left;
  std::atomic<pid_t> processes[kMostRanks];
  std::atomic<uint64_t> sends[kMostRanks], receives[kMostRanks];
};

bool ncclComm::open(const std::string& path) {
  if (size > kMostRanks) return false;
  static_assert(sizeof(Shared) <= kHead);
  const size_t bytes = kHead + 2 * fake_device::kSlotBytes * static_cast<size_t>(size);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return false;
  void* p = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0)
    p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (p == MAP_FAILED) return false;
  shared_ = static_cast<Shared*>(p);  // a new file is all zeros
  slots_ = static_cast<char*>(p) + kHead;
  shared_->processes[rank] = getpid();
  const bool all = barrier();
  if (rank == 0) ::unlink(path.c_str());  // everybody has it
  return all;
}

char* ncclComm::slot(int of) const {
  return slots_ + static_cast<size_t>(of) * fake_device::kSlotBytes;
}

char* ncclComm::boxes(int from) const { return slot(size + from); }

void ncclComm::tell_pending(const Pending& pending) const {
  shared_->sends[rank] = pending.sends;
  shared_->receives[rank] = pending.receives;
}
Pending ncclComm::pending_of(int rank_) const {
  return {shared_->sends[rank_], shared_->receives[rank_]};
}

// A rank waits for another one where that is in a call which does not answer. Ranks that such waits
// lead to from this one, until nothing is added.
bool ncclComm::waits_in_a_circle() const {
  auto bit = [](int of) { return uint64_t{1} << of; };
  auto waits = [&](int one, int other) {
    const Pending here = pending_of(one), there = pending_of(other);
    return there != Pending() &&
           (((here.sends & bit(other)) != 0 && (there.receives & bit(one)) == 0) ||
            ((here.receives & bit(other)) != 0 && (there.sends & bit(one)) == 0));
  };
  uint64_t reached = 0;
  for (uint64_t before = 1; before != reached;) {
    before = reached;
    for (int one = 0; one < size; ++one)
      for (int other = 0; other < size; ++other)
        if ((one == rank || (reached & bit(one)) != 0) && other != one && waits(one, other))
          reached |= bit(other);
  }
  return (reached & bit(rank)) != 0;
}

bool ncclComm::barrier() const {
  const uint32_t round = shared_->round.load();
  if (shared_->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size)) {
    shared_->arrived = 0;
    shared_->round.fetch_add(1);
    return true;
  }
  for (int turns = 0; shared_->round.load() == round; ++turns) {
    if (aborted) return false;
    if (turns % 1000 == 999 && is_alone()) {
      lost = true;
      return false;
    }
    if (turns < 100)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(turns < 1000 ? 20 : 200));
  }
  return true;
}

void ncclComm::stay_away() const { shared_->away = 1; }

void ncclComm::leave() const {
  shared_->left.fetch_add(1);
  while (!aborted && (lost || shared_->left.load() < static_cast<uint32_t>(size)))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool ncclComm::is_alone() const {
  if (shared_->away != 0) return true;
  for (int other = 0; other < size; ++other)
    if (const pid_t process = shared_->processes[other]; process != 0 && has_stopped(process))
      return true;
  return false;
}

bool ncclComm::begin_call() {
  const void* caller = nullptr;
  return caller_.compare_exchange_strong(caller, &this_thread) || caller == &this_thread;
}
void ncclComm::end_calls() {
  const void* caller = &this_thread;
  caller_.compare_exchange_strong(caller, nullptr);
}

namespace fake_device {

namespace {

float from_bfloat16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float out = 0;
  memcpy(&out, &bits, sizeof out);
  return out;
}
uint16_t to_bfloat16(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;  // not a number
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

__extension__ using Half = _Float16;

std::vector<double>& scales() {  // of operations from ncclNumOps on
  static std::vector<double> all;
  return all;
}

template <class T, class Get, class Put>
void reduce_as(const ncclComm& comm, void* out, size_t first, size_t count, ncclRedOp_t operation,
               double scale, Get get, Put put) {
  for (size_t i = 0; i < count; ++i) {
    auto value_of = [&](int rank) {
      const T value = get(comm.slot(rank), first + i);
      return scale == 1 ? value : static_cast<T>(static_cast<double>(value) * scale);
    };
    T total = value_of(0);
    for (int rank = 1; rank < comm.size; ++rank) {
      const T value = value_of(rank);
      switch (operation) {
        case ncclProd:
          total = static_cast<T>(total * value);
          break;
        case ncclMax:
          total = value > total ? value : total;
          break;
        case ncclMin:
          total = value < total ? value : total;
          break;
        default:
          total = static_cast<T>(total + value);
      }
    }
    if (operation == ncclAvg) total = static_cast<T>(total / static_cast<T>(comm.size));
    put(out, i, total);
  }
}

}  // namespace

std::string new_path() {
  std::random_device random;
  char out[64];
  snprintf(out, sizeof out, "/dev/shm/fake_device.%d.%08x%08x", getpid(), random(), random());
  return out;
}

size_t width_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

double read_scalar(const void* p, ncclDataType_t type) {
  if (type == ncclFloat64) return *static_cast<const double*>(p);
  if (type == ncclBfloat16)
    return static_cast<double>(from_bfloat16(*static_cast<const uint16_t*>(p)));
  if (type == ncclFloat16) return static_cast<double>(*static_cast<const Half*>(p));
  return static_cast<double>(*static_cast<const float*>(p));
}

ncclRedOp_t make_scaled_sum(double scale) {
  scales().push_back(scale);
  return static_cast<ncclRedOp_t>(static_cast<size_t>(ncclNumOps) + scales().size() - 1);
}

void reduce_slots(const ncclComm& comm, void* out, size_t first, size_t count, ncclDataType_t type,
                  ncclRedOp_t operation) {
  double scale = 1;
  if (operation >= ncclNumOps) {
    scale = scales()[static_cast<size_t>(operation) - static_cast<size_t>(ncclNumOps)];
    operation = ncclSum;
  }
  auto plain = [&]<class T>(T) {
    reduce_as<T>(
        comm, out, first, count, operation, scale,
        [](const void* p, size_t i) { return static_cast<const T*>(p)[i]; },
        [](void* p, size_t i, T value) { static_cast<T*>(p)[i] = value; });
  };
  switch (type) {
    case ncclFloat32:
      plain(float{});
      break;
    case ncclFloat64:
      plain(double{});
      break;
    case ncclInt32:
      plain(int32_t{});
      break;
    case ncclUint32:
      plain(uint32_t{});
      break;
    case ncclInt64:
      plain(int64_t{});
      break;
    case ncclUint64:
      plain(uint64_t{});
      break;
    case ncclInt8:
      plain(int8_t{});
      break;
    case ncclUint8:
      plain(uint8_t{});
      break;
    case ncclBfloat16:
      reduce_as<float>(
          comm, out, first, count, operation, scale,
          [](const void* p, size_t i) { return from_bfloat16(static_cast<const uint16_t*>(p)[i]); },
          [](void* p, size_t i, float value) {
            static_cast<uint16_t*>(p)[i] = to_bfloat16(value);
          });
      break;
    case ncclFloat16:
      reduce_as<float>(
          comm, out, first, count, operation, scale,
          [](const void* p, size_t i) {
            return static_cast<float>(static_cast<const Half*>(p)[i]);
          },
          [](void* p, size_t i, float value) {
            static_cast<Half*>(p)[i] = static_cast<Half>(value);
          });
      break;
    default:
      fake_device_note("fake device: nccl WRONG: no reduction of type %d\n",
                       static_cast<int>(type));
  }
}

}  // namespace fake_device
