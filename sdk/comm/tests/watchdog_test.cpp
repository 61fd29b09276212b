// Collectives on a device, which the host does not wait for: a back end that calls itself NCCL and
// never finishes.
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "meshwright/error.h"
#include "meshwright/parallel/group.h"
#include "sdk/base/read_by_host.h"
#include "sdk/base/transport.h"
#include "sdk/comm/watchdog.h"

namespace watchdog_test {

using namespace meshwright;

namespace {

enum class Fate : uint8_t { done, never, broken };

struct FakeWork : c10d::Work {
  explicit FakeWork(Fate f) : fate(f) {}
  bool isCompleted() override { return fate != Fate::never; }
  std::exception_ptr exception() const override {
    return fate == Fate::broken
               ? std::make_exception_ptr(std::runtime_error("remote process exited"))
               : nullptr;
  }
  bool wait(std::chrono::milliseconds) override {
    return true;
  }  // orders a stream; the host goes on
  Fate fate;
};

struct FakeNccl : c10d::Backend {
  explicit FakeNccl(Fate f) : Backend(0, 2), fate(f) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<FakeWork>(fate);
  }
  void abort() override { ++aborted; }
  std::atomic<Fate> fate;
  std::atomic<int> aborted = 0;
};

struct Rank0 {
  c10::intrusive_ptr<FakeNccl> backend;
  std::shared_ptr<World> world;
  explicit Rank0(Fate fate)
      : backend(c10::make_intrusive<FakeNccl>(fate)),
        world(make_world(0, 2, at::kCPU, std::chrono::milliseconds(300),
                         [this](const std::string&, const std::vector<int64_t>&) {
                           return transport_over(backend, at::kCPU);
                         })) {}
};

// What check() says within two seconds.
std::string failure_of(World& world, ErrorCode code) {
  for (int i = 0; i < 200; ++i) {
    try {
      world.check();
    } catch (const Error& error) {
      CHECK(error.code() == code);
      return error.what();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "";
}

}  // namespace

TEST_CASE(
    "a collective on a device that never ends is named after its timeout, and the device is let "
    "go") {
  Rank0 rank(Fate::never);
  auto group = rank.world->everyone();
  CHECK(group->has_native_reduce_scatter());
  group->all_reduce(at::zeros({1000000})).wait();  // returns at once
  rank.world->check();
  std::string text = failure_of(*rank.world, ErrorCode::collective_timeout);
  CHECK(text.find("rank 0 waited 0.3") != std::string::npos);
  CHECK(text.find("all_reduce of 4.0 MB in group world [0, 1]") != std::string::npos);
  for (int i = 0; i < 100 && rank.backend->aborted == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(rank.backend->aborted == 1);
  CHECK_THROWS_AS(group->all_reduce(at::zeros({4})), Error);  // nothing goes on after it
  // Nor is anything read that it was to bring.
  const at::Tensor brought = at::zeros({1});
  CHECK_THROWS_AS(meshwright::detail::read_by_host(*group, brought), Error);
}

TEST_CASE("a rank whose back ends do not let go ends ten seconds after the timeout all the same") {
  using meshwright::detail::abort_limit;
  using std::chrono::milliseconds;
  // The roll takes six and a half seconds at most (engine/launch/rendezvous/deadlines.h), and the
  // post one.
  for (int roll : {0, 100, 5000, 6600}) {
    CHECK(milliseconds(roll) + abort_limit(milliseconds(roll)) + milliseconds(1000) <
          milliseconds(10000));
    CHECK(abort_limit(milliseconds(roll)) >= milliseconds(1500));
  }
  // Nothing is left: they are asked to, for a moment.
  CHECK(abort_limit(milliseconds(60000)) == milliseconds(1000));
}

TEST_CASE("a collective that failed on the device is reported with the reason") {
  Rank0 rank(Fate::broken);
  rank.world->everyone()->all_reduce(at::zeros({4})).wait();
  std::string text = failure_of(*rank.world, ErrorCode::collective_failed);
  CHECK(text.find("all_reduce of 16 bytes in group world [0, 1] failed: remote process exited") !=
        std::string::npos);
}

TEST_CASE("collectives that end in time leave nothing to report") {
  Rank0 rank(Fate::done);
  for (int i = 0; i < 50; ++i) rank.world->everyone()->all_reduce(at::zeros({4})).wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  rank.world->check();
  CHECK(rank.backend->aborted == 0);
  const at::Tensor brought = at::zeros({1});
  CHECK(meshwright::detail::read_by_host(*rank.world->everyone(), brought).is_same(brought));
}

}  // namespace watchdog_test
