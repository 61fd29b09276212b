// NCCL's rules, which the fake one enforces, and communicators that are split, by its own
// interface: LibTorch keeps most of the rules. A case that is skipped is what one rank does
// (ranks.h). Longer than others: every rule has a case that breaks it beside the one that looks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "engine/launch/device/device.h"
#include "ranks.h"

namespace nccl_rules_test {

using namespace device_faults_test;

// This rank and its communicator with all others.
struct Everyone {
  int rank = std::atoi(told("RANK").c_str()), ranks = std::atoi(told("WORLD_SIZE").c_str());
  at::TensorOptions options =
      at::TensorOptions()
          .dtype(at::kFloat)
          .device(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank)));
  c10::intrusive_ptr<c10d::FileStore> store =
      c10::make_intrusive<c10d::FileStore>(told("STORE"), ranks);
  ncclComm_t comm = nullptr;

  Everyone() {
    meshwright::device::cuda_part()->use_device(rank);
    ncclUniqueId id{};
    if (rank == 0) {
      OF_THE_FAKE(ncclGetUniqueId)(&id);
      store->set("id", std::vector<uint8_t>(std::begin(id.internal), std::end(id.internal)));
    } else {
      const std::vector<uint8_t> bytes = store->get("id");
      REQUIRE(bytes.size() == sizeof id.internal);
      std::memcpy(id.internal, bytes.data(), bytes.size());
    }
    auto* join = OF_THE_FAKE(ncclCommInitRank);
    REQUIRE(join(&comm, ranks, id, rank) == ncclSuccess);
  }
};

void destroy(ncclComm_t comm) { CHECK(OF_THE_FAKE(ncclCommDestroy)(comm) == ncclSuccess); }

// In place; without a stream on LibTorch's.
ncclResult_t all_reduce(ncclComm_t comm, const at::Tensor& x, ncclRedOp_t operation = ncclSum,
                        cudaStream_t stream = nullptr) {
  return OF_THE_FAKE(ncclAllReduce)(x.const_data_ptr(), x.mutable_data_ptr(),
                                    static_cast<size_t>(x.numel()), ncclFloat, operation, comm,
                                    stream);
}

cudaStream_t new_stream() {
  cudaStream_t out = nullptr;
  CHECK(OF_THE_FAKE(cudaStreamCreateWithFlags)(&out, cudaStreamNonBlocking) == cudaSuccess);
  return out;
}
// What follows on `later` comes after all that was called on `earlier`.
void wait_for(cudaStream_t later, cudaStream_t earlier) {
  cudaEvent_t event = nullptr;
  CHECK(OF_THE_FAKE(cudaEventCreateWithFlags)(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(OF_THE_FAKE(cudaEventRecord)(event, earlier) == cudaSuccess);
  CHECK(OF_THE_FAKE(cudaStreamWaitEvent)(later, event, 0) == cudaSuccess);
  CHECK(OF_THE_FAKE(cudaEventDestroy)(event) == cudaSuccess);
}

// A sum of halves.
ncclRedOp_t sum_of_halves(ncclComm_t comm) {
  ncclRedOp_t out{};
  float half = 0.5;
  CHECK(OF_THE_FAKE(ncclRedOpCreatePreMulSum)(&out, &half, ncclFloat, ncclScalarHostImmediate,
                                              comm) == ncclSuccess);
  return out;
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* out) {
  return OF_THE_FAKE(ncclCommSplit)(comm, color, key, out, nullptr);
}
ncclComm_t part_of(ncclComm_t comm, int color, int key) {
  ncclComm_t out = comm;
  CHECK(split(comm, color, key, &out) == ncclSuccess);
  return out;
}

int number_of_ranks(ncclComm_t comm) {
  int out = -1;
  CHECK(OF_THE_FAKE(ncclCommCount)(comm, &out) == ncclSuccess);
  return out;
}
int rank_in(ncclComm_t comm) {
  int out = -1;
  CHECK(OF_THE_FAKE(ncclCommUserRank)(comm, &out) == ncclSuccess);
  return out;
}
int device_of(ncclComm_t comm) {
  int out = -1;
  CHECK(OF_THE_FAKE(ncclCommCuDevice)(comm, &out) == ncclSuccess);
  return out;
}

// Memory of this rank's device by NCCL's own allocator, and what is done with it.
constexpr size_t kMemory = size_t{1} << 16;
char* device_memory() {
  void* out = nullptr;
  REQUIRE(OF_THE_FAKE(ncclMemAlloc)(&out, kMemory) == ncclSuccess);
  return static_cast<char*>(out);
}
void give_back(void* memory) { CHECK(OF_THE_FAKE(ncclMemFree)(memory) == ncclSuccess); }
// The same of CUDA's allocator.
char* cuda_memory() {
  void* out = nullptr;
  REQUIRE(of_the_fake<cudaError_t(void**, size_t)>("cudaMalloc")(&out, kMemory) == cudaSuccess);
  return static_cast<char*>(out);
}
void give_back_to_cuda(void* memory) { CHECK(OF_THE_FAKE(cudaFree)(memory) == cudaSuccess); }
ncclResult_t register_memory(ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  return OF_THE_FAKE(ncclCommRegister)(comm, memory, bytes, handle);
}
ncclResult_t deregister(ncclComm_t comm, void* handle) {
  return OF_THE_FAKE(ncclCommDeregister)(comm, handle);
}
ncclResult_t all_reduce_bytes(ncclComm_t comm, char* memory, size_t bytes) {
  return OF_THE_FAKE(ncclAllReduce)(memory, memory, bytes, ncclInt8, ncclMax, comm, nullptr);
}

// Who is in a communicator, in its order, by the ranks that they are among all.
std::vector<int> members(ncclComm_t comm, const Everyone& all) {
  const at::Tensor mine = at::full({1}, all.rank, all.options),
                   out = at::zeros({number_of_ranks(comm)}, all.options);
  CHECK(OF_THE_FAKE(ncclAllGather)(mine.const_data_ptr(), out.mutable_data_ptr(), 1, ncclFloat,
                                   comm, nullptr) == ncclSuccess);
  const at::Tensor host = out.cpu();
  const auto* first = host.const_data_ptr<float>();
  return {first, first + host.numel()};
}

// A case of these on so many ranks.
std::vector<Rank> play_together(const std::string& role, int ranks) {
  const Folder folder;
  std::vector<Rank> out = play(role, ranks, Variables{{"STORE", folder.path / "store"}});
  for (const Rank& rank : out) CHECK_MESSAGE(rank.code == 0, rank.said);
  return out;
}

int times(const std::string& text, const std::string& part) {
  int out = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++out;
  return out;
}

// Each of two ranks was told what the other one calls where it should call the same, and no more.
void check_told(const std::vector<Rank>& ranks,
                const std::vector<std::array<std::string, 2>>& calls) {
  REQUIRE(ranks.size() == 2);
  for (size_t rank : {0, 1}) {
    for (const auto& call : calls) {
      const std::string line = "nccl WRONG: rank " + std::to_string(rank) + " of 2 calls " +
                               call[rank] + ", rank " + std::to_string(1 - rank) + " calls " +
                               call[1 - rank] + "\n";
      CHECK_MESSAGE(ranks[rank].log.find(line) != std::string::npos, line << ranks[rank].log);
    }
    CHECK(times(ranks[rank].log, "nccl WRONG") == static_cast<int>(calls.size()));
  }
}

}  // namespace nccl_rules_test

using namespace nccl_rules_test;

TEST_CASE("rank: calls what the other rank does not call" * doctest::skip()) {
  const Everyone all;
  const at::Tensor x = at::full({4}, all.rank + 1, all.options);
  CHECK(all_reduce(all.comm, x, all.rank == 0 ? ncclSum : ncclMax) == ncclInvalidUsage);
  ncclComm_t part = nullptr;
  CHECK((all.rank == 0 ? split(all.comm, 0, 0, &part) : all_reduce(all.comm, x)) ==
        ncclInvalidUsage);
  CHECK(part == nullptr);
  // Each rank numbers the operations that it makes, so the same one may have two numbers.
  if (all.rank == 1) sum_of_halves(all.comm);
  CHECK(all_reduce(all.comm, x, sum_of_halves(all.comm)) == ncclSuccess);
  CHECK(x.sum().item<float>() == 4 * 1.5);  // nothing of what was refused has come
  destroy(all.comm);
}

TEST_CASE("ranks of NCCL that reduce by different operations, or split alone, are told") {
  const std::vector<Rank> ranks = play_together("rank: calls what the other rank does not call", 2);
  check_told(ranks, {{"all_reduce of 4 float32 by sum", "all_reduce of 4 float32 by max"},
                     {"split", "all_reduce of 4 float32 by sum"}});
}

TEST_CASE("rank: calls the same with another type or root or size" * doctest::skip()) {
  const Everyone all;
  const at::Tensor x = at::full({4}, all.rank + 1, all.options), y = at::zeros({8}, all.options);
  const void* in = x.const_data_ptr();
  void* out = y.mutable_data_ptr();
  const bool first = all.rank == 0;
  CHECK(OF_THE_FAKE(ncclAllReduce)(in, out, 4, first ? ncclFloat32 : ncclInt32, ncclSum, all.comm,
                                   nullptr) == ncclInvalidUsage);
  CHECK(OF_THE_FAKE(ncclReduce)(in, out, 4, ncclFloat32, ncclMin, all.rank, all.comm, nullptr) ==
        ncclInvalidUsage);
  CHECK(OF_THE_FAKE(ncclBroadcast)(in, out, 4, ncclFloat32, 1 - all.rank, all.comm, nullptr) ==
        ncclInvalidUsage);
  CHECK(OF_THE_FAKE(ncclAllGather)(in, out, first ? 4 : 2, ncclFloat32, all.comm, nullptr) ==
        ncclInvalidUsage);
  // Also in a group, of which nothing comes.
  OF_THE_FAKE(ncclGroupStart)();
  CHECK(OF_THE_FAKE(ncclReduceScatter)(in, out, 2, ncclFloat32, first ? ncclAvg : ncclProd,
                                       all.comm, nullptr) == ncclSuccess);
  CHECK(OF_THE_FAKE(ncclGroupEnd)() == ncclInvalidUsage);
  CHECK(y.sum().item<float>() == 0);
  destroy(all.comm);
}

TEST_CASE("ranks of NCCL that differ in a type, a root or a size are told which") {
  check_told(
      play_together("rank: calls the same with another type or root or size", 2),
      {{"all_reduce of 4 float32 by sum", "all_reduce of 4 int32 by sum"},
       {"reduce of 4 float32 by min to rank 0", "reduce of 4 float32 by min to rank 1"},
       {"broadcast of 4 float32 from rank 1", "broadcast of 4 float32 from rank 0"},
       {"all_gather of 4 float32", "all_gather of 2 float32"},
       {"reduce_scatter of 2 float32 by average", "reduce_scatter of 2 float32 by product"}});
}

TEST_CASE("rank: calls from two threads" * doctest::skip()) {
  const Everyone all;
  const at::Tensor x = at::ones({4}, all.options), y = at::ones({4}, all.options);
  if (all.rank == 1) {
    all.store->wait({"refused"});
    for (int i = 0; i < 3; ++i) CHECK(all_reduce(all.comm, y.copy_(x)) == ncclSuccess);
    destroy(all.comm);
    return;
  }
  // The first one waits for the other rank, which waits until the second one is refused.
  auto call = [&](const at::Tensor& values) {
    const ncclResult_t result = all_reduce(all.comm, values);
    if (result != ncclSuccess) all.store->set("refused", {1});
    return result;
  };
  ncclResult_t here = ncclSuccess, there = ncclSuccess;
  std::thread beside([&] { there = call(y); });
  here = call(x);
  beside.join();
  CHECK((here == ncclSuccess) != (there == ncclSuccess));
  CHECK((here == ncclInvalidUsage) != (there == ncclInvalidUsage));
  CHECK((x + y).sum().item<float>() == 4 * (1 + 2));
  // A group's calls are under way until its end.
  OF_THE_FAKE(ncclGroupStart)();
  CHECK(all_reduce(all.comm, x) == ncclSuccess);
  std::thread([&] { there = all_reduce(all.comm, y); }).join();
  CHECK(there == ncclInvalidUsage);
  CHECK(OF_THE_FAKE(ncclGroupEnd)() == ncclSuccess);
  // One after the other they may.
  std::thread([&] { there = all_reduce(all.comm, y); }).join();
  CHECK(there == ncclSuccess);
  destroy(all.comm);
}

TEST_CASE("two threads that are in calls of one communicator of NCCL are told") {
  const std::vector<Rank> ranks = play_together("rank: calls from two threads", 2);
  CHECK_MESSAGE(times(ranks[0].log, "nccl WRONG: rank 0 of 2 is in calls of one communicator") == 2,
                ranks[0].log);
  CHECK_MESSAGE(ranks[1].log.find("nccl WRONG") == std::string::npos, ranks[1].log);
}

TEST_CASE("rank: calls on two streams" * doctest::skip()) {
  const Everyone all;
  ncclComm_t part = part_of(all.comm, 0, all.rank);
  REQUIRE(part != nullptr);
  const at::Tensor x = at::ones({4}, all.options), y = at::ones({8}, all.options);
  cudaStream_t one = new_stream(), two = new_stream();
  CHECK(OF_THE_FAKE(cudaDeviceSynchronize)() == cudaSuccess);
  CHECK(all_reduce(all.comm, x, ncclSum, one) == ncclSuccess);
  CHECK(all_reduce(all.comm, y, ncclMax, two) == ncclSuccess);  // told
  // Behind an event, and behind what the host has waited for.
  wait_for(one, two);
  CHECK(all_reduce(all.comm, x, ncclMin, one) == ncclSuccess);
  CHECK(OF_THE_FAKE(cudaStreamSynchronize)(one) == cudaSuccess);
  CHECK(all_reduce(all.comm, y, ncclMin, two) == ncclSuccess);
  // Streams of a group wait for each other.
  OF_THE_FAKE(ncclGroupStart)();
  CHECK(all_reduce(all.comm, y, ncclMax, two) == ncclSuccess);
  CHECK(all_reduce(all.comm, x, ncclMax, one) == ncclSuccess);
  CHECK(OF_THE_FAKE(ncclGroupEnd)() == ncclSuccess);
  CHECK(all_reduce(all.comm, y, ncclMax, two) == ncclSuccess);
  // Each communicator has an order of its own.
  CHECK(all_reduce(part, x, ncclMax, one) == ncclSuccess);
  CHECK(OF_THE_FAKE(cudaDeviceSynchronize)() == cudaSuccess);
  for (ncclComm_t comm : {part, all.comm}) destroy(comm);
}

TEST_CASE("operations of one communicator of NCCL on streams that nothing orders are told") {
  const std::vector<Rank> ranks = play_together("rank: calls on two streams", 2);
  for (size_t rank : {0, 1}) {
    const std::string& log = ranks[rank].log;
    for (const std::string& part :
         {"nccl WRONG: rank " + std::to_string(rank) +
              " of 2 calls all_reduce of 8 float32 by max on stream ",
          std::string(", and nothing orders it behind all_reduce of 4 float32 by sum on stream "),
          std::string(" of the same communicator\n")}) {
      CAPTURE(part);
      CHECK_MESSAGE(times(log, part) == 1, log);
    }
    CHECK_MESSAGE(times(log, "nccl WRONG") == 1, log);
    CHECK_MESSAGE(times(log, "RACE") == 0, log);
  }
}

TEST_CASE("rank: brings memory of the host" * doctest::skip()) {
  const Everyone all;
  CHECK(all_reduce(all.comm, at::ones({4}, all.options)) == ncclSuccess);
  CHECK(all_reduce(all.comm, at::ones({4}, at::kFloat)) == ncclSuccess);
  destroy(all.comm);
}

TEST_CASE("memory of the host in a collective of NCCL is told") {
  const Rank rank = play_together("rank: brings memory of the host", 1)[0];
  CHECK_MESSAGE(times(rank.log, "nccl WRONG") == 1, rank.log);
  CHECK(times(rank.log, "nccl WRONG: nccl all_reduce with memory ") == 1);
  CHECK(times(rank.log, " that is not of device 0\n") == 1);
}

TEST_CASE("rank: registers memory against the rules" * doctest::skip()) {
  const Everyone all;
  char *one = cuda_memory(), *other = device_memory();
  void* handle = nullptr;
  // Memory that is no device's, or not all of it.
  char host[16] = "";
  CHECK(register_memory(all.comm, host, sizeof host, &handle) == ncclInvalidArgument);
  CHECK(register_memory(all.comm, one, size_t{1} << 40, &handle) == ncclInvalidArgument);
  CHECK(handle == nullptr);
  // The first half alone: what begins there must end there.
  REQUIRE(register_memory(all.comm, one, kMemory / 2, &handle) == ncclSuccess);
  CHECK(all_reduce_bytes(all.comm, one, kMemory / 2) == ncclSuccess);
  CHECK(all_reduce_bytes(all.comm, one + kMemory / 2, kMemory / 2) == ncclSuccess);
  CHECK(all_reduce_bytes(all.comm, one + kMemory / 4, kMemory / 2) == ncclSuccess);
  // Handles that are none, or not any more.
  CHECK(deregister(all.comm, host) == ncclInvalidUsage);
  CHECK(deregister(all.comm, handle) == ncclSuccess);
  CHECK(deregister(all.comm, handle) == ncclInvalidUsage);
  // Given back too early, and not told again.
  REQUIRE(register_memory(all.comm, one, kMemory, &handle) == ncclSuccess);
  void* of_other = nullptr;
  REQUIRE(register_memory(all.comm, other, kMemory, &of_other) == ncclSuccess);
  give_back_to_cuda(one);
  give_back(other);
  CHECK(deregister(all.comm, handle) == ncclSuccess);
  destroy(all.comm);
}

TEST_CASE("memory that is registered with NCCL against its rules is told") {
  const Rank rank = play_together("rank: registers memory against the rules", 1)[0];
  struct Line {
    const char* part;
    int times;
  };
  for (const Line& line : {Line{"nccl WRONG: rank 0 of 1 ", 7},
                           {"registers 16 bytes at ", 1},
                           {"registers 1099511627776 bytes at ", 1},
                           {" that are not all memory of device 0\n", 2},
                           {"calls all_reduce with 32768 bytes at ", 1},
                           {", of which only the first 16384 are registered\n", 1},
                           {", which is no handle of this communicator\n", 1},
                           {", which it has deregistered before\n", 1},
                           {"has registered 65536 bytes at ", 2},
                           {", and they are given back before they are deregistered\n", 2}}) {
    CAPTURE(std::string(line.part));
    CHECK_MESSAGE(times(rank.log, line.part) == line.times, rank.log);
  }
  CHECK(times(rank.log, "nccl WRONG") == 7);
}

TEST_CASE("rank: gives memory back to another allocator" * doctest::skip()) {
  const Everyone all;
  // By the rules: nothing is told, also of addresses that come again from the other one.
  give_back(device_memory());
  give_back_to_cuda(cuda_memory());
  give_back(nullptr);
  give_back(cuda_memory());
  give_back_to_cuda(device_memory());
  destroy(all.comm);
}

TEST_CASE("memory of NCCL's allocator that CUDA's takes back is told, and the reverse") {
  const Rank rank = play_together("rank: gives memory back to another allocator", 1)[0];
  CHECK_MESSAGE(times(rank.log, "nccl WRONG: ncclMemFree() gives back memory at ") == 1, rank.log);
  CHECK(times(rank.log, " that does not come from ncclMemAlloc()\n") == 1);
  CHECK(times(rank.log, " comes from ncclMemAlloc(), and cudaFree() gives it back\n") == 1);
  CHECK(times(rank.log, "nccl WRONG") == 2);
}

TEST_CASE("rank: registers memory by the rules" * doctest::skip()) {
  const Everyone all;
  ncclComm_t part = part_of(all.comm, 0, all.rank);
  REQUIRE(part != nullptr);
  char *one = device_memory(), *two = device_memory(), *three = device_memory();
  void *handle = nullptr, *of_part = nullptr;
  REQUIRE(register_memory(all.comm, one, kMemory, &handle) == ncclSuccess);
  CHECK(all_reduce_bytes(all.comm, one, kMemory) == ncclSuccess);
  CHECK(all_reduce_bytes(all.comm, one + 64, kMemory - 64) == ncclSuccess);
  // In place, from this rank's half.
  CHECK(OF_THE_FAKE(ncclAllGather)(one + static_cast<size_t>(all.rank) * kMemory / 2, one,
                                   kMemory / 2, ncclInt8, all.comm, nullptr) == ncclSuccess);
  CHECK(deregister(all.comm, handle) == ncclSuccess);
  give_back(one);
  // Each communicator has its own, until it ends.
  REQUIRE(register_memory(all.comm, two, kMemory, &handle) == ncclSuccess);
  REQUIRE(register_memory(part, two, kMemory / 2, &of_part) == ncclSuccess);
  CHECK(all_reduce_bytes(all.comm, two, kMemory) == ncclSuccess);
  CHECK(deregister(all.comm, handle) == ncclSuccess);
  CHECK(OF_THE_FAKE(ncclCommAbort)(part) == ncclSuccess);
  give_back(two);
  REQUIRE(register_memory(all.comm, three, kMemory, &handle) == ncclSuccess);
  destroy(all.comm);
  give_back(three);
}

TEST_CASE("memory is registered with NCCL until its communicator is destroyed or aborted") {
  check_played(play_together("rank: registers memory by the rules", 2));
}

TEST_CASE("rank: splits its communicator" * doctest::skip()) {
  using Ranks = std::vector<int>;
  const Everyone all;
  // Odd and even ranks apart, the last one first.
  ncclComm_t half = part_of(all.comm, all.rank % 2, -all.rank);
  REQUIRE(half != nullptr);
  CHECK(number_of_ranks(half) == 2);
  CHECK(rank_in(half) == (all.rank < 2 ? 1 : 0));
  CHECK(device_of(half) == all.rank);
  CHECK((members(half, all) == Ranks{all.rank % 2 + 2, all.rank % 2}));
  // By the same key, without rank 3.
  ncclComm_t most = part_of(all.comm, all.rank == 3 ? NCCL_SPLIT_NOCOLOR : 7, 0);
  REQUIRE((most == nullptr) == (all.rank == 3));
  if (most != nullptr) CHECK((members(most, all) == Ranks{0, 1, 2}));
  // A part of a part, of one rank.
  ncclComm_t alone = part_of(half, rank_in(half), 0);
  REQUIRE(alone != nullptr);
  CHECK((members(alone, all) == Ranks{all.rank}));
  // They add up apart, and the first one is as it was.
  const at::Tensor x = at::full({4}, all.rank, all.options);
  CHECK(all_reduce(half, x) == ncclSuccess);
  CHECK(x.sum().item<float>() == 4 * (2 + 2 * (all.rank % 2)));
  CHECK((members(all.comm, all) == Ranks{0, 1, 2, 3}));
  for (ncclComm_t comm : {alone, most, half, all.comm})
    if (comm != nullptr) destroy(comm);
}

TEST_CASE("communicators of NCCL split by color, in the order of keys") {
  check_played(play_together("rank: splits its communicator", 4));
}
