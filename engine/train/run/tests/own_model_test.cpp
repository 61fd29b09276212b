// A module that no config.json describes, under tensor parallelism: its plan comes from the job,
// its outline from the module.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <mutex>

#include "engine/job/plan.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/trainer.h"

namespace own_model_test {

using namespace meshwright;
using at::Tensor;
using torch::nn::LinearOptions;

namespace {

// Two heads of three, normed between the projections.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    before = register_module("before", RMSNorm(8, 1e-6));
    widen = register_module("widen", Linear(LinearOptions(8, 12)));
    heads = register_module("heads", RMSNorm(3, 1e-6));
    narrow = register_module("narrow", Linear(LinearOptions(12, 8)));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = widen(before(x));
    h = heads(h.view({h.size(0), h.size(1), -1, 3})).flatten(2);
    return x + narrow(at::silu(h));
  }
  RMSNorm before{nullptr}, heads{nullptr};
  Linear widen{nullptr}, narrow{nullptr};
};
MESHWRIGHT_MODULE(Block);

struct LayerImpl : torch::nn::Module {
  LayerImpl() { block = register_module("block", Block()); }
  Tensor forward(const Tensor& x) { return block(x); }
  Block block{nullptr};
};
MESHWRIGHT_MODULE(Layer);

struct ReaderImpl : torch::nn::Module {
  ReaderImpl() {
    embed = register_module("embed", Embedding(13, 8));
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(Layer());
    head = register_module("head", Linear(LinearOptions(8, 13)));
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = embed(ids);
    for (auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
  Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Reader);

const std::vector<std::pair<std::string, std::string>> kPlan = {
    {"embed", "rowwise_rep"},
    {"layers.*.block.widen", "colwise"},
    {"layers.*.block.narrow", "rowwise"},
    {"head", "colwise_rep"},
    {"layers.*.block.before", "replicated"},
    {"layers.*.block.heads", "replicated_with_grad_allreduce"},
    {"layers.*.block.shrink", "colwise"}};

struct Result {
  std::vector<double> losses, norms;
  std::vector<std::string> notices;
};

Result train_reader(int64_t ranks, int64_t tp,
                    const std::vector<std::pair<std::string, std::string>>& plan) {
  Result out;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    Job job;
    std::vector<std::pair<std::string, std::string>> keys{
        {"distributed.strategy", "\"fsdp2\""},
        {"distributed.mp_policy.param_dtype", "\"float32\""},
        {"distributed.mp_policy.output_dtype", "\"float32\""},
        {"step_scheduler.global_batch_size", "4"},
        {"step_scheduler.local_batch_size", std::to_string(4 * tp / ranks)},
        {"distributed.tp_size", std::to_string(tp)}};
    for (const auto& [pattern, style] : plan)
      keys.emplace_back("distributed.tp_plan.\"" + pattern + "\"", "\"" + style + "\"");
    for (const auto& [key, value] : keys) job.set(key, value);
    Reader net;
    {
      c10::NoGradGuard no_grad;
      // Every tensor-parallel rank has values of its own; the first rank's become everybody's.
      uint64_t seed = 1 + 100 * static_cast<uint64_t>(world->rank() % tp);
      for (auto& item : net->named_parameters())
        item.value().copy_(at::randn(item.value().sizes(), at::detail::createCPUGenerator(seed++)) *
                           0.5);
    }
    Trainer trainer(job, world, net.ptr());
    Result mine;
    for (int step = 0; step < 6; ++step) {
      StepResult result = trainer.step([&](int64_t) {
        int64_t rows = trainer.local_batch();
        Tensor ids = at::empty({rows, 6}, at::kLong);
        int64_t first = step * 4 + trainer.data_parallel_rank() * rows;
        for (int64_t i = 0; i < ids.numel(); ++i)
          ids.view({-1})[i].fill_((first * 6 + i) * (first * 6 + i + 3) % 13);
        Tensor logits = net(ids.narrow(1, 0, 5));
        return MicroBatchLoss{
            at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, 5).flatten(), {},
                                   at::Reduction::Sum),
            rows * 5};
      });
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
    }
    mine.notices = world->notices();
    if (world->rank() == 0) out = std::move(mine);
  });
  return out;
}

}  // namespace

TEST_CASE("a module of one's own trains under a plan of patterns as on one rank") {
  Result alone = train_reader(1, 1, {});
  for (const auto& [ranks, tp] : {std::pair<int64_t, int64_t>{2, 2}, {4, 2}, {4, 4}}) {
    INFO(ranks << " ranks, tp " << tp);
    Result cut = train_reader(ranks, tp, kPlan);
    REQUIRE(cut.losses.size() == alone.losses.size());
    for (size_t i = 0; i < cut.losses.size(); ++i) {
      CHECK(std::abs(cut.losses[i] / alone.losses[i] - 1) < 1e-5);
      CHECK(std::abs(cut.norms[i] / alone.norms[i] - 1) < 1e-5);
    }
    bool told = false;
    for (const std::string& notice : cut.notices)
      told =
          told ||
          notice ==
              "the pattern \"layers.*.block.shrink\" of the tensor-parallel plan matches no module";
    CHECK(told);
  }
}

TEST_CASE("a Trainer has read its job's keys: none is set while it lives") {
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Job job;
    job.set("distributed.strategy", "\"fsdp2\"");
    Reader net;
    {
      Trainer trainer(job, world, net.ptr());
      try {
        job.set("optimizer.lr", "0.5");
        FAIL("it was set");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::conflict);
        CHECK(error.key() == "optimizer.lr");
        CHECK(job.table("optimizer").get_number("lr") != 0.5);
      }
    }
    job.set("optimizer.lr", "0.5");
    CHECK(job.table("optimizer").get_number("lr") == 0.5);
  });
}

TEST_CASE("tensor parallelism that would cut nothing is refused") {
  std::mutex mutex;
  int refused = 0;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Job job;
    job.set("distributed.strategy", "\"fsdp2\"").set("distributed.tp_size", "2");
    Reader net;
    try {
      Trainer trainer(job, world, net.ptr());
    } catch (const Error& error) {
      std::lock_guard lock(mutex);
      refused += error.code() == ErrorCode::tp_plan_does_not_fit &&
                 error.message() ==
                     "tp_size = 2, but no tensor-parallel plan is known for Reader, and the base "
                     "plan names none of its modules";
    }
  });
  CHECK(refused == 2);
}

}  // namespace own_model_test
