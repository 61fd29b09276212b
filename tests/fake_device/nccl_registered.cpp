// Memory that is registered with a communicator: NCCL reaches it without copies of its own, so it
// must be device memory that stays there until it is deregistered or the communicator ends. And
// memory of NCCL's own allocator, which is given back to it.
#include <mutex>
#include <set>
#include <vector>

#include "device.h"
#include "nccl_shared.h"

namespace fake_device {

namespace {

struct Registered {
  const ncclComm* comm = nullptr;
  uintptr_t begin = 0;
  size_t bytes = 0;
  bool there = true;        // not yet deregistered, and the communicator has not ended
  bool given_back = false;  // all the same
  uintptr_t end() const { return begin + bytes; }
  bool has(uintptr_t address) const {
    return there && !given_back && address >= begin && address < end();
  }
};

// Never destroyed: memory is given back until the process has ended. The runtime calls watch()
// under its own lock, so whoever holds the mutex calls nothing that takes that one.
struct State {
  std::mutex mutex;
  std::vector<Registered*> all;   // for good: a handle means one of them for ever
  std::set<uintptr_t> allocated;  // by NCCL's allocator
};
State& state() {
  static auto* made = new State;
  return *made;
}

uintptr_t number(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// Device memory is given back.
void watch(const void* p, size_t bytes) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (state().allocated.erase(number(p)) > 0)
    fake_device_note(
        "fake device: nccl WRONG: memory at %p comes from ncclMemAlloc(), and cudaFree() gives it "
        "back\n",
        p);
  for (Registered* one : state().all) {
    if (!one->there || one->given_back) continue;
    if (one->begin >= number(p) + bytes || one->end() <= number(p)) continue;
    one->given_back = true;
    fake_device_note(
        "fake device: nccl WRONG: rank %d of %d has registered %zu bytes at %#zx, and they are "
        "given back before they are deregistered\n",
        one->comm->rank, one->comm->size, one->bytes, size_t{one->begin});
  }
}

}  // namespace

ncclResult_t register_memory(const ncclComm& comm, const void* p, size_t bytes, void** handle) {
  *handle = nullptr;
  if (comm.aborted) return ncclInvalidUsage;
  if (fake_device_of(p) != comm.device || fake_device_holds(p, bytes) == 0) {
    fake_device_note(
        "fake device: nccl WRONG: rank %d of %d registers %zu bytes at %p that are not all memory "
        "of device %d\n",
        comm.rank, comm.size, bytes, p, comm.device);
    return ncclInvalidArgument;
  }
  fake_device_watch_frees(&watch);
  auto* made = new Registered;
  made->comm = &comm;
  made->begin = number(p);
  made->bytes = bytes;
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().all.push_back(made);
  *handle = made;
  return ncclSuccess;
}

ncclResult_t deregister_memory(const ncclComm& comm, const void* handle) {
  if (comm.aborted) return ncclSuccess;  // its handles went with it
  const std::lock_guard<std::mutex> lock(state().mutex);
  const char* wrong = "which is no handle of this communicator";
  for (Registered* one : state().all) {
    if (one != handle || one->comm != &comm) continue;
    if (one->there) {
      one->there = false;
      return ncclSuccess;
    }
    wrong = "which it has deregistered before";
  }
  fake_device_note("fake device: nccl WRONG: rank %d of %d deregisters %p, %s\n", comm.rank,
                   comm.size, handle, wrong);
  return ncclInvalidUsage;
}

void forget_registered(const ncclComm& comm) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  for (Registered* one : state().all)
    if (one->comm == &comm) one->there = false;
}

void check_registered(const ncclComm& comm, const void* p, size_t bytes, const char* what) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const Registered* begins = nullptr;
  for (const Registered* one : state().all) {
    if (one->comm != &comm || !one->has(number(p))) continue;
    if (bytes <= one->end() - number(p)) return;
    begins = one;
  }
  if (begins == nullptr) return;
  fake_device_note(
      "fake device: nccl WRONG: rank %d of %d calls %s with %zu bytes at %p, of which only the "
      "first %zu are registered\n",
      comm.rank, comm.size, what, bytes, p, begins->end() - number(p));
}

void remember_allocated(const void* p) {
  fake_device_watch_frees(&watch);
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().allocated.insert(number(p));
}

void forget_allocated(const void* p) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (state().allocated.erase(number(p)) > 0) return;
  fake_device_note(
      "fake device: nccl WRONG: ncclMemFree() gives back memory at %p that does not come from "
      "ncclMemAlloc()\n",
      p);
}

}  // namespace fake_device
