// NCCL's rules, which the fake one enforces, and communicators that are split, by its own
// interface: LibTorch keeps most of the rules. A case that is skipped is what one rank does
// (ranks.h).
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "engine/device/device.h"
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
      of_the_fake<decltype(ncclGetUniqueId)>("ncclGetUniqueId")(&id);
      store->set("id", std::vector<uint8_t>(std::begin(id.internal), std::end(id.internal)));
    } else {
      const std::vector<uint8_t> bytes = store->get("id");
      REQUIRE(bytes.size() == sizeof id.internal);
      std::memcpy(id.internal, bytes.data(), bytes.size());
    }
    auto* join = of_the_fake<decltype(ncclCommInitRank)>("ncclCommInitRank");
    REQUIRE(join(&comm, ranks, id, rank) == ncclSuccess);
  }
};

void destroy(ncclComm_t comm) {
  CHECK(of_the_fake<decltype(ncclCommDestroy)>("ncclCommDestroy")(comm) == ncclSuccess);
}

// In place, on LibTorch's stream.
ncclResult_t all_reduce(ncclComm_t comm, const at::Tensor& x, ncclRedOp_t operation = ncclSum) {
  return of_the_fake<decltype(ncclAllReduce)>("ncclAllReduce")(
      x.const_data_ptr(), x.mutable_data_ptr(), static_cast<size_t>(x.numel()), ncclFloat,
      operation, comm, nullptr);
}

// A sum of halves.
ncclRedOp_t sum_of_halves(ncclComm_t comm) {
  ncclRedOp_t out{};
  float half = 0.5;
  CHECK(of_the_fake<decltype(ncclRedOpCreatePreMulSum)>("ncclRedOpCreatePreMulSum")(
            &out, &half, ncclFloat, ncclScalarHostImmediate, comm) == ncclSuccess);
  return out;
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* out) {
  return of_the_fake<decltype(ncclCommSplit)>("ncclCommSplit")(comm, color, key, out, nullptr);
}
ncclComm_t part_of(ncclComm_t comm, int color, int key) {
  ncclComm_t out = comm;
  CHECK(split(comm, color, key, &out) == ncclSuccess);
  return out;
}

int number_of_ranks(ncclComm_t comm) {
  int out = -1;
  CHECK(of_the_fake<decltype(ncclCommCount)>("ncclCommCount")(comm, &out) == ncclSuccess);
  return out;
}
int rank_in(ncclComm_t comm) {
  int out = -1;
  CHECK(of_the_fake<decltype(ncclCommUserRank)>("ncclCommUserRank")(comm, &out) == ncclSuccess);
  return out;
}
int device_of(ncclComm_t comm) {
  int out = -1;
  CHECK(of_the_fake<decltype(ncclCommCuDevice)>("ncclCommCuDevice")(comm, &out) == ncclSuccess);
  return out;
}

// Who is in a communicator, in its order, by the ranks that they are among all.
std::vector<int> members(ncclComm_t comm, const Everyone& all) {
  const at::Tensor mine = at::full({1}, all.rank, all.options),
                   out = at::zeros({number_of_ranks(comm)}, all.options);
  CHECK(of_the_fake<decltype(ncclAllGather)>("ncclAllGather")(mine.const_data_ptr(),
                                                              out.mutable_data_ptr(), 1, ncclFloat,
                                                              comm, nullptr) == ncclSuccess);
  const at::Tensor host = out.cpu();
  const auto* first = host.const_data_ptr<float>();
  return {first, first + host.numel()};
}

// A case of these on so many ranks.
std::vector<Rank> play_together(const std::string& role, int ranks) {
  const Folder folder;
  std::vector<Rank> out =
      play(role, ranks, [&](int) { return Variables{{"STORE", folder.path / "store"}}; });
  for (const Rank& rank : out) CHECK_MESSAGE(rank.code == 0, rank.said);
  return out;
}

int times(const std::string& text, const std::string& part) {
  int out = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++out;
  return out;
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
  for (const char* line : {"rank 0 of 2 calls all_reduce of 4 by sum, rank 1 calls all_reduce of 4 "
                           "by max\n",
                           "rank 0 of 2 calls split, rank 1 calls all_reduce of 4 by sum\n"})
    CHECK_MESSAGE(ranks[0].log.find(line) != std::string::npos, ranks[0].log);
  for (const char* line : {"rank 1 of 2 calls all_reduce of 4 by max, rank 0 calls all_reduce of 4 "
                           "by sum\n",
                           "rank 1 of 2 calls all_reduce of 4 by sum, rank 0 calls split\n"})
    CHECK_MESSAGE(ranks[1].log.find(line) != std::string::npos, ranks[1].log);
  for (const Rank& rank : ranks) CHECK(times(rank.log, "nccl WRONG") == 2);
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
  of_the_fake<decltype(ncclGroupStart)>("ncclGroupStart")();
  CHECK(all_reduce(all.comm, x) == ncclSuccess);
  std::thread([&] { there = all_reduce(all.comm, y); }).join();
  CHECK(there == ncclInvalidUsage);
  CHECK(of_the_fake<decltype(ncclGroupEnd)>("ncclGroupEnd")() == ncclSuccess);
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
