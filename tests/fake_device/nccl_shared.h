// A communicator of the fake NCCL: a file in /dev/shm with a slot for each of its ranks, which are
// processes of one host. A collective runs at once and waits for the others.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device.h"

namespace fake_device {

// What a rank calls, for the others to compare.
struct Said {
  uint32_t kind = 0, type = 0, root = 0, operation = 0;
  uint64_t count = 0;
  bool operator==(const Said&) const = default;
};

}  // namespace fake_device

// Of a rank that sends and receives: with whom it still waits, as bits.
struct Pending {
  uint64_t sends = 0, receives = 0;
  bool operator==(const Pending&) const = default;
};

struct ncclComm {
  int rank = 0, size = 0, device = 0;
  std::atomic<bool> aborted{false};
  std::atomic<bool> failed{false};        // which it says to who asks
  mutable std::atomic<bool> lost{false};  // a rank will never come
  fake_device::Said last;                 // what it was called for, and where in the order
  FakeDevicePlace last_place;

  // Joins the ranks that have the same file; false when that cannot be.
  bool open(const std::string& path);
  char* slot(int of) const;
  // Waits for all ranks; false when the communicator was given up meanwhile, or when one of them
  // will not come: it is dead, stopped, or waits for ever itself.
  bool barrier() const;
  // This rank will not come any more.
  void stay_away() const;
  void leave() const;  // with all others
  bool is_alone() const;

  // The calling thread is in calls of this communicator until end_calls(), once or more; false
  // where another one is.
  bool begin_call();
  void end_calls();

  // Messages between pairs of ranks: where those of `from` lie, what this rank waits for, and
  // whether ranks wait for each other in calls that will never meet.
  char* boxes(int from) const;
  void tell_pending(const Pending& pending) const;
  bool waits_in_a_circle() const;

  struct Shared;

 private:
  Pending pending_of(int rank) const;
  Shared* shared_ = nullptr;
  char* slots_ = nullptr;
  std::atomic<const void*> caller_{nullptr};  // a thread, by an address that is its own
};

namespace fake_device {

constexpr size_t kSlotBytes = size_t{4} << 20;  // of a rank, in one round

enum class Kind : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  all_to_all,
  pairs,  // sends and receives of one group
  split,
};
const char* name_of(Kind kind);

// Success where all ranks of the communicator say the same.
ncclResult_t agree(const ncclComm& comm, const Said& mine);

struct Transfer {
  bool send = false;
  void* data = nullptr;
  size_t bytes = 0;
  int peer = 0;
};

// A call of NCCL's interface, with what it was given.
struct Call {
  Kind kind;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t operation = ncclSum;
  int root = 0;
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Transfer> transfers;
  bool joins = false;  // the kernel of another call of its group
};

size_t width_of(ncclDataType_t type);
double read_scalar(const void* p, ncclDataType_t type);
std::string new_path();  // of a communicator's file
// A sum of what was multiplied by `scale` first.
ncclRedOp_t make_scaled_sum(double scale);
// The elements of all slots from `first` on, reduced into `out`.
void reduce_slots(const ncclComm& comm, void* out, size_t first, size_t count, ncclDataType_t type,
                  ncclRedOp_t operation);

// A rank's place in a communicator that is split off.
struct Part {
  std::string path;
  int rank = 0, size = 0;  // 0 ranks: none
};
ncclResult_t split(const ncclComm& parent, int color, int key, Part& part);

// Memory that is registered with a communicator (nccl_registered.cpp). What is against the rules is
// told: memory that is not of its device, or given back too early, a handle that is none of its own
// or not any more, and a buffer of a call that begins within and goes on behind the end.
ncclResult_t register_memory(const ncclComm& comm, const void* p, size_t bytes, void** handle);
ncclResult_t deregister_memory(const ncclComm& comm, const void* handle);
void forget_registered(const ncclComm& comm);  // it ends
void check_registered(const ncclComm& comm, const void* p, size_t bytes, const char* what);
// Memory of NCCL's own allocator, which takes it back itself: other memory that it is to take, and
// its own where CUDA takes that, are told.
void remember_allocated(const void* p);
void forget_allocated(const void* p);

ncclResult_t run(const Call& call);
// The transfers of a call; false where they cannot end.
bool send_and_receive(const Call& call);
// This process will take part in nothing any more.
void stay_away_from_all();

}  // namespace fake_device
