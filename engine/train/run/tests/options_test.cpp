// Options of a file that only a run shows: what they do when a job is trained as the file says.
#include "engine/train/run/tests/curves.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include "engine/job/plan.h"
#include "engine/train/step/load_weights.h"

#include <doctest/doctest.h>

namespace options_test {

using namespace meshwright;
using at::Tensor;

namespace {

// Two layers, of which the second may be left out, and a buffer that every forward adds this rank's
// number to.
struct Pair : torch::nn::Module {
  Pair()
      : first(register_module("first", torch::nn::Linear(3, 3))),
        second(register_module("second", torch::nn::Linear(3, 3))),
        seen(register_buffer("seen", at::zeros({1}))) {}
  Tensor forward(const Tensor& x, int64_t rank, bool both) {
    seen.add_(static_cast<double>(rank + 1));
    Tensor y = first->forward(x);
    return both ? second->forward(y) : y;
  }
  torch::nn::Linear first, second;
  Tensor seen;
};

struct Ended {
  std::vector<double> seen;        // the buffer of each rank after the last step
  std::vector<std::string> error;  // code and key, by rank; empty: none
};

// `both(step)`: whether the second layer takes part.
Ended train_pair(const std::vector<std::string>& sets, int64_t steps,
                 const std::function<bool(int64_t)>& both) {
  Ended out{std::vector<double>(2), std::vector<std::string>(2)};
  std::mutex mutex;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    std::vector<std::string> all = {
        "distributed.strategy=ddp", "step_scheduler.global_batch_size=2",
        "step_scheduler.local_batch_size=1", "distributed.mp_policy.param_dtype=float32",
        "distributed.mp_policy.output_dtype=float32"};
    all.insert(all.end(), sets.begin(), sets.end());
    Job job = Job::from_text("schema = 1\n", all);
    auto net = std::make_shared<Pair>();
    Trainer trainer(job, world, net, {}, 3);
    std::string error;
    try {
      for (int64_t step = 0; step < steps; ++step)
        trainer.step([&](int64_t) {
          return MicroBatchLoss{
              net->forward(at::ones({1, 3}), world->rank(), both(step)).square().sum(), 3};
        });
    } catch (const Error& e) {
      error = code_string(e.code()) + " " + e.key();
    }
    std::lock_guard lock(mutex);
    out.seen[static_cast<size_t>(world->rank())] = net->seen.item<double>();
    out.error[static_cast<size_t>(world->rank())] = error;
  });
  return out;
}

bool always(int64_t) { return true; }
bool never(int64_t) { return false; }

const std::vector<std::string> kFine(2);

}  // namespace

TEST_CASE(
    "ddp's broadcast_buffers: rank 0's buffers reach all before every step when the file asks for "
    "it, else once") {
  CHECK(train_pair({}, 3, always).seen == std::vector<double>{3, 6});
  CHECK(train_pair({"distributed.ddp.broadcast_buffers=true"}, 3, always).seen ==
        std::vector<double>{3, 4});
}

TEST_CASE(
    "ddp's find_unused_parameters: a parameter that nothing uses is an error that names the key, "
    "or has no gradient") {
  CHECK(train_pair({}, 2, never).error ==
        std::vector<std::string>(2, "E0802 distributed.ddp.find_unused_parameters"));
  CHECK(train_pair({"distributed.ddp.find_unused_parameters=true"}, 2, never).error == kFine);
  // What is used may change from step to step.
  CHECK(train_pair({"distributed.ddp.find_unused_parameters=true"}, 4, [](int64_t step) {
          return step % 2 == 1;
        }).error == kFine);
}

TEST_CASE(
    "ddp's static_graph: the first step says what is used, and another set later is an error that "
    "names the key") {
  CHECK(train_pair({"distributed.ddp.static_graph=true"}, 3, never).error == kFine);
  CHECK(train_pair({"distributed.ddp.static_graph=true"}, 3, always).error == kFine);
  CHECK(train_pair({"distributed.ddp.static_graph=true"}, 3, [](int64_t step) {
          return step == 2;
        }).error == std::vector<std::string>(2, "E0802 distributed.ddp.static_graph"));
}

TEST_CASE("a strategy's backend is the one that the ranks have, or an error that names the key") {
  TestFolder folder("options_backend");
  const std::string dense = write_model(folder.path, kLlama),
                    experts = write_model(folder.path, kMixtral);
  struct Row {
    const char *strategy, *table;
    std::vector<std::string> sets;
    std::string model;
  };
  for (const Row& row : {Row{"ddp", "ddp", {}, dense}, Row{"fsdp2", "fsdp2", {}, dense},
                         Row{"megatron_fsdp", "megatron_fsdp", {}, dense},
                         Row{"moe_ep", "fsdp2", {"distributed.ep_size=2"}, experts}}) {
    CAPTURE(row.strategy);
    const std::string key = "distributed." + std::string(row.table) + ".backend";
    Layout plain{row.strategy, 2, row.sets, row.model}, gloo = plain, nccl = plain;
    gloo.sets.push_back(key + "=gloo");
    nccl.sets.push_back(key + "=nccl");
    CHECK(curve_of(gloo, 1).losses == curve_of(plain, 1).losses);
    try {
      curve_of(nccl, 1);
      FAIL("ranks without NCCL trained as if they had it");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::device_unavailable);
      CHECK(error.key() == key);
      CHECK(!error.helps().empty());
    }
  }
}

TEST_CASE(
    "fake_balanced_gate in the file sends tokens to the experts in turns, leaves routers as they "
    "are, and is warned of") {
  TestFolder folder("options_gate");
  const std::string model = write_model(folder.path, kMixtral),
                    router = "model.layers.0.mlp.gate.weight";
  for (bool fake : {false, true}) {
    CAPTURE(fake);
    run_ranks(1, [&](const std::shared_ptr<World>& world) {
      Rank rank({"fsdp2",
                 1,
                 {std::string("distributed.moe.fake_balanced_gate=") + (fake ? "true" : "false"),
                  "optimizer.weight_decay=0"},
                 model},
                world);
      rank.initialize();
      auto routers = [&] {
        std::vector<Tensor> out;
        for (const ParallelParameter& p : rank.trainer.model().parameters())
          if (p.name.find("gate.weight") != std::string::npos) out.push_back(p.local.clone());
        return out;
      };
      std::vector<Tensor> before = routers();
      REQUIRE(before.size() == 2);
      StepResult result = rank.step();
      REQUIRE(result.experts.size() == 2);
      std::vector<Tensor> after = routers();
      for (size_t i = 0; i < 2; ++i) {
        CHECK((result.experts[i].imbalance() == 1) == fake);
        CHECK(after[i].equal(before[i]) == fake);
      }
      bool warned = false;
      for (const std::string& text : rank.trainer.plan().warnings)
        warned = warned || text.find("fake_balanced_gate") != std::string::npos;
      CHECK(warned == fake);
    });
  }
}

TEST_CASE(
    "run.deterministic switches LibTorch to deterministic algorithms, and nothing else does") {
  auto trained = [](const std::string& deterministic) {
    run_ranks(1, [&](const std::shared_ptr<World>& world) {
      Rank rank({"fsdp2", 1, {"run.deterministic=" + deterministic}}, world);
      rank.initialize();
      rank.step();
    });
    return at::globalContext().deterministicAlgorithms();
  };
  CHECK_FALSE(trained("false"));
  CHECK(trained("true"));
  // Such algorithms leave nothing to what memory held before.
  CHECK(std::isnan(at::empty({1}).item<double>()));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST_CASE("run.threads is the number of threads of a rank; without it OMP_NUM_THREADS is") {
  const int before = at::get_num_threads();
  train::set_threads(Job::from_text("schema = 1\n[run]\nthreads = 3\n"));
  CHECK(at::get_num_threads() == 3);
  const char* omp = std::getenv("OMP_NUM_THREADS");
  const std::string kept = omp == nullptr ? "" : omp;
  ::setenv("OMP_NUM_THREADS", "2", 1);
  train::set_threads(Job::from_text("schema = 1\n"));
  CHECK(at::get_num_threads() == 2);
  train::set_threads(
      Job::from_text("schema = 1\n[run]\nthreads = 1\n"));  // what the file says goes first
  CHECK(at::get_num_threads() == 1);
  kept.empty() ? ::unsetenv("OMP_NUM_THREADS") : ::setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  at::set_num_threads(before);
}

}  // namespace options_test
