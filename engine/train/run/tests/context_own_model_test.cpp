// Context parallelism of a module that no config.json describes: two attention cores in a layer,
// and what is refused. Before doctest: LibTorch has a CHECK of its own.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/rnn.h>

#include "engine/train/run/tests/context_layouts.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/loss.h"
#include "meshwright/parallel/context_parallel.h"

#include <doctest/doctest.h>

namespace context_own_model_test {

using namespace meshwright;
using at::Tensor;
using torch::nn::LinearOptions;

namespace {

constexpr int64_t kWidth = 8, kWords = 13, kTokens = 11, kRows = 4;

enum class Attends : uint8_t { twice, never, by_itself, beside_recurrence };

// Two heads of four.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(std::optional<int64_t> window) {
    in = register_module("in", Linear(LinearOptions(kWidth, 3 * kWidth)));
    if (window)
      core =
          register_module("core", AttentionCore(AttentionOptions{.scale = 0.5, .window = *window}));
  }
  Tensor forward(const Tensor& x) {
    Tensor parts = in(x).view({x.size(0), x.size(1), 6, kWidth / 2});
    Tensor q = parts.narrow(2, 0, 2), k = parts.narrow(2, 2, 2), v = parts.narrow(2, 4, 2);
    return (core ? core(q, k, v) : q + k + v).flatten(2);
  }
  Linear in{nullptr};
  AttentionCore core{nullptr};
};
MESHWRIGHT_MODULE(Attention);

// One that sees three tokens, and one that sees all.
struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(Attends attends) {
    const bool cores = attends != Attends::never;
    near = register_module("near", Attention(cores ? std::optional<int64_t>(3) : std::nullopt));
    far =
        register_module(attends == Attends::by_itself ? "far_attn" : "far",
                        Attention(cores && attends != Attends::by_itself ? std::optional<int64_t>(0)
                                                                         : std::nullopt));
    if (attends == Attends::beside_recurrence)
      register_module("memory", torch::nn::GRU(torch::nn::GRUOptions(kWidth, kWidth)));
  }
  Tensor forward(const Tensor& x) { return x + near(x) + far(x); }
  Attention near{nullptr}, far{nullptr};
};
MESHWRIGHT_MODULE(Layer);

struct ReaderImpl : torch::nn::Module {
  explicit ReaderImpl(Attends attends) {
    embed = register_module("embed", Embedding(kWords, kWidth));
    register_module("layers", layers);
    for (int i = 0; i < 2; ++i) layers->push_back(Layer(attends));
    head = register_module("head", Linear(LinearOptions(kWidth, kWords)));
    c10::NoGradGuard no_grad;
    uint64_t seed = 1;
    for (Tensor& p : parameters())
      p.copy_(at::randn(p.sizes(), at::detail::createCPUGenerator(seed++)) * 0.4);
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

Job job_of(const OnMesh& mesh, const std::string& method) {
  Job job;
  const int64_t cp = mesh.sets.empty() ? 1 : 2;
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"distributed.strategy", "\"fsdp2\""},
           {"distributed.mp_policy.param_dtype", "\"float32\""},
           {"distributed.mp_policy.output_dtype", "\"float32\""},
           {"optimizer.eps", "1e-5"},
           {"step_scheduler.global_batch_size", std::to_string(kRows)},
           {"step_scheduler.local_batch_size", std::to_string(kRows * cp / mesh.ranks)},
           {"distributed.cp_size", std::to_string(cp)}})
    job.set(key, value);
  if (!method.empty()) job.set("distributed.context.method", "\"" + method + "\"");
  return job;
}

struct Trained {
  Curve curve;
  std::vector<std::string> notices;
};

Trained train(const OnMesh& mesh, const std::string& method = "") {
  Trained out;
  run_ranks(mesh.ranks, [&](const std::shared_ptr<World>& world) {
    Job job = job_of(mesh, method);
    Reader net(Attends::twice);
    Trainer trainer(job, world, net.ptr(), {}, kRows * kTokens);
    const std::shared_ptr<ContextParallel> context = trainer.model().context_parallel();
    Curve mine;
    for (int step = 0; step < 8; ++step) {
      StepResult result = trainer.step([&](int64_t) {
        const int64_t rows = trainer.local_batch();
        Tensor ids = samples_of(step * kRows + trainer.data_parallel_rank() * rows, rows, kTokens,
                                kWords),
               input = ids.narrow(1, 0, kTokens), targets = ids.narrow(1, 1, kTokens);
        if (!context) return MicroBatchLoss{cross_entropy_sum(net(input), targets), rows * kTokens};
        SequenceScope scope = context->scope(kTokens, rows);
        return MicroBatchLoss{
            cross_entropy_sum(net(context->shard(input, 1, 0)), context->shard(targets, 1, -100)),
            rows * context->tokens_of(kTokens, context->group()->rank())};
      });
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
    }
    for (const ParallelParameter& p : trainer.model().parameters())
      mine.parameters[p.name] = trainer.model().full_tensor(p.name).clone();
    if (world->rank() == 0) out = {std::move(mine), world->notices()};
  });
  return out;
}

// What a rank of two is told.
std::string refusal(Attends attends) {
  std::string out;
  std::mutex mutex;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Job job = job_of({2, {kCp2}}, "ring");
    Reader net(attends);
    try {
      Trainer trainer(job, world, net.ptr());
    } catch (const Error& error) {
      std::lock_guard lock(mutex);
      if (world->rank() == 0) out = code_string(error.code()) + " " + error.message();
    }
  });
  return out;
}

}  // namespace

TEST_CASE(
    "context own model: two attention cores in a layer train as on one rank, by every method") {
  const Trained alone = train(kAlone);
  CHECK(alone.notices.empty());
  for (const OnMesh& mesh : {OnMesh{2, {kCp2}}, {4, {kCp2}}})
    for (const char* method : {"", "all_gather", "ring", "ulysses"}) {
      INFO(mesh.ranks << " ranks, method \"" << method << '"');
      const Trained found = train(mesh, method);
      CHECK(strays(found.curve, alone.curve) == "");
      REQUIRE(found.notices.size() == 1);
      CHECK(found.notices[0] ==
            "the plan does not count what attention of Reader sends over cp: its heads and windows "
            "are not known before it runs");
    }
}

TEST_CASE("context own model: without a core, or with attention of its own, it is refused") {
  CHECK(refusal(Attends::twice) == "");
  CHECK(refusal(Attends::never) ==
        "E0318 the model Reader has no attention core: nothing in it would see the tokens of other "
        "ranks");
  CHECK(refusal(Attends::by_itself) ==
        "E0318 layers.0.far_attn computes a token from others by itself: with cp_size above 1 it "
        "would see the tokens of its own rank alone");
  CHECK(refusal(Attends::beside_recurrence) ==
        "E0318 layers.0.memory computes a token from others by itself: with cp_size above 1 it "
        "would see the tokens of its own rank alone");
}

}  // namespace context_own_model_test
