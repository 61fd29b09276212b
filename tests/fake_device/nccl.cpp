// libnccl.so.2: NCCL's interface. Calls between ncclGroupStart() and ncclGroupEnd() wait for its
// end; sends and receives among them become one exchange.
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "device.h"
#include "nccl_shared.h"

using namespace fake_device;

namespace {

std::atomic<int> made{0}, destroyed{0}, given_up{0};  // communicators
struct AtExit {
  ~AtExit() {
    const int left = made - destroyed - given_up;
    if (left > 0) fake_device_note("fake device: %d communicators are left\n", left);
    if (made > 0)
      fake_device_note("fake device: %d communicators destroyed, %d aborted\n", destroyed.load(),
                       given_up.load());
  }
} at_exit;

std::mutex mutex;
std::vector<const ncclComm*>& communicators() {
  static auto* all = new std::vector<const ncclComm*>;
  return *all;
}

thread_local int depth = 0;
thread_local std::vector<Call> waiting;
thread_local std::vector<ncclComm*> entered;  // until the call or the group ends

// NCCL takes calls of a communicator from one thread at a time.
bool enter(ncclComm* comm) {
  if (!comm->begin_call()) {
    fake_device_note(
        "fake device: nccl WRONG: rank %d of %d is in calls of one communicator in two threads at "
        "once\n",
        comm->rank, comm->size);
    return false;
  }
  entered.push_back(comm);
  return true;
}
void leave_entered() {
  for (ncclComm* comm : entered) comm->end_calls();
  entered.clear();
}

ncclResult_t put(Call call) {
  if (!enter(call.comm)) return ncclInvalidUsage;
  if (depth == 0) {
    const ncclResult_t result = run(call);
    leave_entered();
    return result;
  }
  if (call.kind == Kind::pairs)
    for (Call& other : waiting)
      if (other.kind == Kind::pairs && other.comm == call.comm) {
        other.transfers.push_back(call.transfers[0]);
        return ncclSuccess;
      }
  call.joins = std::any_of(waiting.begin(), waiting.end(), [&](const Call& other) {
    return other.comm == call.comm && other.stream == call.stream;
  });
  waiting.push_back(std::move(call));
  return ncclSuccess;
}

ncclResult_t put_transfer(bool send, void* p, size_t count, ncclDataType_t type, int peer,
                          ncclComm_t comm, cudaStream_t stream) {
  return put({.kind = Kind::pairs,
              .comm = comm,
              .stream = stream,
              .transfers = {{send, p, count * width_of(type), peer}}});
}

bool has_several_streams(const std::vector<Call>& calls) {  // of one communicator
  return std::any_of(calls.begin(), calls.end(), [&](const Call& one) {
    return std::any_of(calls.begin(), calls.end(), [&](const Call& other) {
      return one.comm == other.comm && one.stream != other.stream;
    });
  });
}
// NCCL makes the streams of one communicator's calls in a group wait for each other, before its
// kernel and behind it.
void wait_for_each_other(const std::vector<Call>& calls) {
  for (const Call& one : calls)
    for (const Call& other : calls) {
      if (one.comm != other.comm || one.stream == other.stream) continue;
      cudaEvent_t event = nullptr;
      cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
      cudaEventRecord(event, one.stream);
      cudaStreamWaitEvent(other.stream, event, 0);
      cudaEventDestroy(event);
    }
}

const char* last_error = "";
ncclResult_t no_memory() {
  last_error = "Cuda failure 2 'out of memory'";
  return ncclUnhandledCudaError;
}

// What a communicator takes of its device.
bool has_memory() {
  const char* bytes = getenv("FAKE_DEVICE_NCCL_MEMORY");
  void* taken = nullptr;
  return bytes == nullptr || cudaMalloc(&taken, strtoull(bytes, nullptr, 10)) == cudaSuccess;
}

// A communicator of the ranks that come to the same file.
ncclResult_t make(ncclComm_t* out, const char* path, int rank, int size, int device) {
  if (!has_memory()) return no_memory();
  auto* comm = new ncclComm;  // for good: streams may still wait for what it ran
  comm->rank = rank;
  comm->size = size;
  comm->device = device;
  if (!comm->open(path)) return ncclSystemError;
  *out = comm;
  {
    std::lock_guard<std::mutex> lock(mutex);
    communicators().push_back(comm);
  }
  ++made;
  return ncclSuccess;
}

ncclResult_t answer(int* out, int value) {
  *out = value;
  return ncclSuccess;
}

}  // namespace

void fake_device::stay_away_from_all() {
  std::lock_guard<std::mutex> lock(mutex);
  for (const ncclComm* comm : communicators()) comm->stay_away();
}

extern "C" {

ncclResult_t ncclGetVersion(int* out) { return answer(out, NCCL_VERSION_CODE); }
const char* ncclGetErrorString(ncclResult_t result) {
  if (result == ncclSuccess) return "no error";
  return result == ncclRemoteError ? "given up" : "error of the fake NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return last_error; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* out) {
  memset(out, 0, sizeof *out);
  snprintf(out->internal, sizeof out->internal, "%s", new_path().c_str());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  int device = 0;
  cudaGetDevice(&device);
  return make(out, id.internal, rank, size, device);
}
ncclResult_t ncclCommInitRank(ncclComm_t* out, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(out, size, id, rank, nullptr);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* out, int size, int rank, int, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  return ncclCommInitRankConfig(out, size, ids[0], rank, config);
}
ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) { return ncclInvalidUsage; }
// At once, within a group, too.
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* out, ncclConfig_t*) {
  *out = nullptr;
  if (parent->aborted || !enter(parent)) return ncclInvalidUsage;
  Part part;
  const ncclResult_t result = split(*parent, color, key, part);
  if (depth == 0) leave_entered();
  if (result != ncclSuccess || part.size == 0) return result;
  return make(out, part.path.c_str(), part.rank, part.size, parent->device);
}
ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) {
  fake_device_note("fake device: ncclCommShrink is not there\n");
  return ncclInvalidUsage;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;  // as NCCL, also of one that was aborted before
  fake_device_release();
  if (!comm->aborted.exchange(true)) ++given_up;
  forget_registered(*comm);
  return ncclSuccess;
}
// For ever where the others do not come, or something on the device does not end.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;  // as NCCL
  comm->leave();
  if (!comm->aborted.exchange(true)) ++destroyed;
  forget_registered(*comm);
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommCount(const ncclComm_t comm, int* out) { return answer(out, comm->size); }
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* out) { return answer(out, comm->rank); }
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* out) { return answer(out, comm->device); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* out) {
  *out = comm->failed ? ncclSystemError : comm->aborted ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* p, size_t bytes, void** handle) {
  return register_memory(*comm, p, bytes, handle);
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return deregister_memory(*comm, handle);
}
ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int) {
  return ncclInvalidUsage;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclInvalidUsage; }
int ncclDevCommCreate() { return ncclInvalidUsage; }
int ncclDevCommDestroy() { return ncclInvalidUsage; }
ncclResult_t ncclMemAlloc(void** out, size_t bytes) {
  if (cudaMalloc(out, bytes) != cudaSuccess) return no_memory();
  remember_allocated(*out);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* p) {
  if (p == nullptr) return ncclSuccess;
  forget_allocated(p);
  return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* out, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t) {
  *out = make_scaled_sum(read_scalar(fake_device_view(scalar), type));
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  std::vector<Call> calls;
  calls.swap(waiting);
  const bool waits = has_several_streams(calls);
  ncclResult_t result = ncclSuccess;
  for (const Call& call : calls) {
    if (waits) wait_for_each_other(calls);
    if (result == ncclSuccess) result = run(call);
  }
  if (waits) wait_for_each_other(calls);
  leave_entered();
  return result;
}
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return put({Kind::all_reduce, in, out, count, type, operation, 0, comm, stream, {}});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return put({Kind::all_gather, in, out, count, type, ncclSum, 0, comm, stream, {}});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return put({Kind::reduce_scatter, in, out, count, type, operation, 0, comm, stream, {}});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return put({Kind::broadcast, in, out, count, type, ncclSum, root, comm, stream, {}});
}
ncclResult_t ncclBcast(void* p, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return put({Kind::broadcast, p, p, count, type, ncclSum, root, comm, stream, {}});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t comm, cudaStream_t stream) {
  return put({Kind::reduce, in, out, count, type, operation, root, comm, stream, {}});
}
ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  return put({Kind::all_to_all, in, out, count, type, ncclSum, 0, comm, stream, {}});
}
ncclResult_t ncclSend(const void* p, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put_transfer(true, const_cast<void*>(p), count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* p, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put_transfer(false, p, count, type, peer, comm, stream);
}
}
