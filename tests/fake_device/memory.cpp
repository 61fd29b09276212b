// Memory of the devices and pinned memory. Device memory is mapped twice: at the addresses that the
// program sees, where nobody may touch it, and at the host's view, where the bytes are.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>

#include "delays.h"
#include "graphs.h"
#include "runtime.h"

namespace fake_device {

namespace {

// A copy that the host does not know to be over.
struct Flight {
  size_t stream = 0;
  uint64_t time = 0;
  bool written = false;  // by the device
  const char* what = "";
};
struct Pinned {
  void* pages = nullptr;  // as the program sees them
  char* view = nullptr;
  size_t bytes = 0;
  std::vector<Flight> flights;
  int protection = PROT_READ | PROT_WRITE;
};

uintptr_t number(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// Addresses of all devices, one device after the other.
struct Region {
  explicit Region(size_t bytes) : span(bytes) {}
  void map() {
    auto pages = [&](int protection) {
      void* p = mmap(nullptr, span * kMostDevices, protection,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) abort();
      return static_cast<char*>(p);
    };
    view = pages(PROT_READ | PROT_WRITE);
    base = pages(PROT_NONE);
  }
  uintptr_t begin() const { return number(base.load()); }
  bool has(uintptr_t address) const {
    return begin() != 0 && address - begin() < span * kMostDevices;
  }
  // The next addresses of a device, or 0.
  uintptr_t more(int device, size_t bytes) {
    const auto of = static_cast<size_t>(device);
    if (top[of] + bytes > span) return 0;
    top[of] += bytes;
    return begin() + of * span + top[of] - bytes;
  }

  const size_t span;  // of a device
  size_t top[kMostDevices] = {};
  std::atomic<char*> base = nullptr;  // asked without the lock, too
  char* view = nullptr;
};

// Several reservations, each of more than the memory of a device.
constexpr size_t kReservedBytes = 16 * kDeviceBytes;

struct State {
  Region malloced{kDeviceBytes}, reserved{kReservedBytes};  // the latter once somebody asks for it
  std::map<uintptr_t, size_t> used;                         // blocks of all devices
  std::map<uintptr_t, size_t> free[kMostDevices];           // those given back, by address
  std::map<uintptr_t, size_t> unreserved[kMostDevices];     // addresses given back
  size_t taken[kMostDevices] = {};
  std::map<uintptr_t, Pinned> pinned;
  std::map<uintptr_t, size_t> registered;
};
State& state() {
  static auto* all = [] {
    auto* made = new State;  // never destroyed: other libraries end later
    made->malloced.map();
    return made;
  }();
  return *all;
}

// Where an address of a device lies; null: it is none.
const Region* region_at(uintptr_t address) {
  for (const Region* one : {&state().malloced, &state().reserved})
    if (one->has(address)) return one;
  return nullptr;
}

size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

std::pair<const uintptr_t, Pinned>* pinned_at(uintptr_t address) {
  auto it = state().pinned.upper_bound(address);
  if (it == state().pinned.begin()) return nullptr;
  --it;
  return address < it->first + it->second.bytes ? &*it : nullptr;
}
std::pair<const uintptr_t, Pinned>* pinned_at(const void* p) { return pinned_at(number(p)); }

void protect(Pinned& pinned) {
  int wanted = PROT_READ | PROT_WRITE;
  for (const Flight& flight : pinned.flights) wanted &= flight.written ? PROT_NONE : PROT_READ;
  if (wanted == pinned.protection) return;
  mprotect(pinned.pages, pinned.bytes, wanted);
  pinned.protection = wanted;
}

// What NCCL wants to know of memory that is given back.
std::atomic<void (*)(const void* p, size_t bytes)> watching_frees = nullptr;
void tell_free(uintptr_t address, size_t bytes) {
  if (auto* told = watching_frees.load()) told(reinterpret_cast<const void*>(address), bytes);
}

// The first block given back that is large enough, or 0.
uintptr_t take_again(std::map<uintptr_t, size_t>& blocks, size_t bytes) {
  for (auto it = blocks.begin(); it != blocks.end(); ++it) {
    if (it->second < bytes) continue;
    const auto [address, there] = *it;
    blocks.erase(it);
    if (there > bytes) blocks.emplace(address + bytes, there - bytes);
    return address;
  }
  return 0;
}

}  // namespace

bool is_device(const void* p) { return region_at(number(p)) != nullptr; }
bool is_allocated(const void* p) {
  auto it = state().used.upper_bound(number(p));
  if (it == state().used.begin()) return false;
  --it;
  return number(p) < it->first + it->second;
}
bool is_pinned(const void* p) { return pinned_at(p) != nullptr; }
char* view_at(uintptr_t address) {
  if (auto* pinned = pinned_at(address)) return pinned->second.view + (address - pinned->first);
  const Region* region = region_at(address);
  if (region == nullptr) region = &state().malloced;
  return region->view + (address - region->begin());
}

void take_off(const void* pinned, const Stream& stream, bool written, const char* what) {
  auto* found = pinned_at(pinned);
  if (found == nullptr) return;
  found->second.flights.push_back({stream.number, at(stream.clock, stream.number), written, what});
  protect(found->second);
}

void land() {
  const Clock& host = host_clock();
  for (auto& [_, pinned] : state().pinned) {
    if (pinned.flights.empty()) continue;
    std::erase_if(pinned.flights,
                  [&](const Flight& flight) { return at(host, flight.stream) >= flight.time; });
    protect(pinned);
  }
}

bool tell_pinned(void* address, bool wrote) {
  auto* found = pinned_at(address);
  if (found == nullptr) return false;
  Pinned& pinned = found->second;
  const size_t stream = pinned.flights.empty() ? 0 : pinned.flights.back().stream;
  fprintf(log_file(),
          "fake device: RACE host %s of pinned memory at %p%s while [%s] is in flight; the host "
          "should have waited for stream %zu\n",
          wrote ? "write" : "read", address, name_at(number(address)).c_str(),
          pinned.flights.empty() ? "?" : pinned.flights.back().what, stream);
  log_stack();
  ++counts().races;
  pinned.flights.clear();
  protect(pinned);
  return true;
}

}  // namespace fake_device

using namespace fake_device;

extern "C" {

void* fake_device_view(const void* p) {
  if (const Region* region = region_at(number(p)))
    return region->view + (number(p) - region->begin());
  Lock lock;
  if (auto* found = pinned_at(p)) return found->second.view + (number(p) - found->first);
  return const_cast<void*>(p);
}
int fake_device_of(const void* p) {
  const Region* region = region_at(number(p));
  return region == nullptr ? -1 : static_cast<int>((number(p) - region->begin()) / region->span);
}

uintptr_t fake_device_reserve(size_t bytes) {
  Lock lock;
  State& all = state();
  if (all.reserved.begin() == 0) all.reserved.map();
  const int device = current_device();
  const uintptr_t again = take_again(all.unreserved[device], whole_pages(bytes));
  return again != 0 ? again : all.reserved.more(device, whole_pages(bytes));
}
void fake_device_unreserve(uintptr_t address, size_t bytes) {
  Lock lock;
  State& all = state();
  const size_t device = (address - all.reserved.begin()) / kReservedBytes;
  all.unreserved[device].emplace(address, whole_pages(bytes));
}
int fake_device_take(int device, size_t bytes) {
  set_up();
  Lock lock;
  size_t& taken = state().taken[device];
  if (taken + bytes > settings().memory) return 0;
  taken += bytes;
  return 1;
}
void fake_device_give(int device, size_t bytes) {
  Lock lock;
  state().taken[device] -= bytes;
}
void fake_device_map(uintptr_t address, size_t bytes) {
  Lock lock;
  state().used[address] = bytes;
  if (settings().poison) memset(view_at(address), 0xff, bytes);
}
int fake_device_unmap(uintptr_t address, size_t bytes) {
  Lock lock;
  const auto it = state().used.find(address);
  if (it == state().used.end() || it->second != bytes) return 0;
  tell_free(address, bytes);
  forget(address, bytes);
  madvise(view_at(address), bytes, MADV_DONTNEED);
  state().used.erase(it);
  return 1;
}
int fake_device_holds(const void* p, size_t bytes) {
  Lock lock;
  const std::map<uintptr_t, size_t>& used = state().used;
  const uintptr_t end = number(p) + bytes;
  // Segments that grow are of several blocks, side by side.
  for (uintptr_t at = number(p); at < end;) {
    auto it = used.upper_bound(at);
    if (it == used.begin()) return 0;
    --it;
    if (at >= it->first + it->second) return 0;
    at = it->first + it->second;
  }
  return 1;
}
void fake_device_watch_frees(void (*told)(const void* p, size_t bytes)) { watching_frees = told; }

cudaError_t cudaMalloc(void** p, size_t bytes) {
  set_up();
  Lock lock;
  if (const cudaError_t error = refuse_unsafe(); error != cudaSuccess) return error;
  State& all = state();
  const int device = current_device();
  const size_t whole = whole_pages(bytes);
  *p = nullptr;
  if (all.taken[device] + whole > settings().memory) return fail(cudaErrorMemoryAllocation);
  uintptr_t address = take_again(all.free[device], whole);
  if (address == 0) address = all.malloced.more(device, whole);
  if (address == 0) return fail(cudaErrorMemoryAllocation);
  all.used[address] = whole;
  all.taken[device] += whole;
  *p = all.malloced.base.load() + (address - all.malloced.begin());
  // No zeros by luck: these are not-a-numbers and large integers.
  if (settings().poison) memset(fake_device_view(*p), 0xff, whole);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  set_up();
  if (p == nullptr) return cudaSuccess;
  {
    Lock lock;
    if (const cudaError_t error = refuse_unsafe(); error != cudaSuccess) return error;
  }
  wait_for_device();
  Lock lock;
  State& all = state();
  auto it = all.used.find(number(p));
  if (it == all.used.end()) return fail(cudaErrorInvalidValue);
  const auto [address, bytes] = *it;
  const int device = fake_device_of(p);
  tell_free(address, bytes);
  forget(address, bytes);
  madvise(fake_device_view(p), bytes, MADV_DONTNEED);
  all.free[device].emplace(address, bytes);
  all.taken[device] -= bytes;
  all.used.erase(it);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) { return cudaMalloc(p, bytes); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Lock lock;
  *total = settings().memory;
  *free = *total - state().taken[current_device()];
  return cudaSuccess;
}

// Pinned memory is mapped twice, too: a copy writes through the view while its pages are closed.
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  Lock lock;
  if (const cudaError_t error = refuse_unsafe(); error != cudaSuccess) return error;
  Pinned made;
  made.bytes = whole_pages(bytes);
  const int file = memfd_create("pinned", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(made.bytes)) != 0)
    return fail(cudaErrorMemoryAllocation);
  auto map = [&] { return mmap(nullptr, made.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); };
  *p = map();
  made.pages = *p;
  made.view = static_cast<char*>(map());
  close(file);
  if (*p == MAP_FAILED || made.view == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
  if (settings().poison) memset(made.view, 0xff, made.bytes);
  state().pinned[number(*p)] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  Lock lock;
  if (const cudaError_t error = refuse_unsafe(); error != cudaSuccess) return error;
  auto it = state().pinned.find(number(p));
  if (it == state().pinned.end()) return fail(cudaErrorInvalidValue);
  drop_writes(number(p), it->second.bytes);
  munmap(p, it->second.bytes);
  munmap(it->second.view, it->second.bytes);
  state().pinned.erase(it);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  Lock lock;
  state().registered[number(p)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  Lock lock;
  state().registered.erase(number(p));
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  Lock lock;
  *out = {};
  out->type = cudaMemoryTypeUnregistered;
  out->hostPointer = const_cast<void*>(p);
  if (is_device(p)) {
    out->type = cudaMemoryTypeDevice;
    out->device = fake_device_of(p);
    out->devicePointer = const_cast<void*>(p);
    out->hostPointer = nullptr;
  } else if (is_pinned(p)) {
    out->type = cudaMemoryTypeHost;
    out->devicePointer = const_cast<void*>(p);
  } else {
    out->device = cudaInvalidDeviceId;
    for (const auto& [begin, bytes] : state().registered)
      if (number(p) - begin < bytes) out->type = cudaMemoryTypeHost;
  }
  return cudaSuccess;
}
}
