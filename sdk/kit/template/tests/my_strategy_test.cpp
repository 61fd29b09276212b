#include <ATen/ops/arange.h>
#include <meshwright/nn/attention.h>
#include <meshwright/nn/layers.h>
#include <meshwright/nn/loss.h>
#include <meshwright/nn/stage.h>
#include <meshwright/parallel/context_parallel.h>
#include <meshwright/parallel/testing.h>
#include <meshwright/trainer.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/utils.h>

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>  // after LibTorch, which has a CHECK of its own

namespace mw = meshwright;

extern "C" const meshwright_plugin meshwright_plugin_v1;

namespace {

// The strategy as the engine makes it: through the descriptor.
std::shared_ptr<mw::Strategy> make_strategy() {
  const meshwright_strategy& about = meshwright_plugin_v1.strategies[0];
  meshwright_status status{sizeof(meshwright_status), 0, {}};
  auto* strategy = static_cast<mw::Strategy*>(about.create(&status));
  REQUIRE_MESSAGE(strategy != nullptr, status.message);
  return {strategy, about.destroy};
}

mw::MeshRequest request_for(int64_t world_size) {
  const meshwright_strategy& about = meshwright_plugin_v1.strategies[0];
  mw::MeshRequest request;
  request.world_size = world_size;
  request.config.own() = mw::Options(
      mw::make_schema("distributed.my_strategy", about.name, {about.options, about.option_count}));
  return request;
}

// A small module to train. MESHWRIGHT_MODULE in place of TORCH_MODULE lets a strategy run hooks
// around forward.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(mw::Linear(5, 5));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = x + layer->as<mw::Linear>()->forward(x).tanh();
    return x;
  }
  torch::nn::ModuleList layers;
};
MESHWRIGHT_MODULE(Net);

// One that reads samples of words, with attention to those before: the strategy knows nothing of
// it.
struct ReaderImpl : torch::nn::Module {
  ReaderImpl() {
    embed = register_module("embed", mw::Embedding(11, 8));
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(mw::Linear(8, 8));
    core = register_module("core", mw::AttentionCore(mw::AttentionOptions{.scale = 0.5}));
    head = register_module("head", mw::Linear(8, 11));
  }
  // As a model of stages: ids, or what the stage before gave.
  at::Tensor forward(const at::Tensor& in) {
    const mw::StagePart part = mw::current_stage();
    at::Tensor x = part.first ? embed(in) : in;
    for (int64_t i = part.begin; i < part.end_of(3); ++i)
      x = x + layers[static_cast<size_t>(i)]->as<mw::Linear>()->forward(x).tanh();
    if (!part.last) return x;
    at::Tensor heads = x.view({x.size(0), x.size(1), 2, 4});
    return head(x + core(heads, heads, heads).flatten(2));
  }
  mw::Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  mw::AttentionCore core{nullptr};
  mw::Linear head{nullptr};
};
MESHWRIGHT_MODULE(Reader);

// The loss of one micro-batch, the `number`-th of the job, on the ranks that share its samples.
mw::MicroBatchLoss loss_of(mw::Trainer& trainer, Net& net, int64_t number, const at::Tensor&) {
  int64_t rows = trainer.local_batch();
  at::Tensor x = (at::arange(rows * 5, at::kFloat) * (0.1 * static_cast<double>(number + 1)))
                     .sin()
                     .view({rows, 5});
  return {(net->forward(x) + x).square().sum(), rows};
}
mw::MicroBatchLoss loss_of(mw::Trainer& trainer, Reader& net, int64_t number,
                           const at::Tensor& hidden) {
  const int64_t rows = trainer.local_batch(), length = 9;
  // The same samples in every step.
  at::Tensor ids = (at::arange(rows * (length + 1), at::kLong) * (number % 4 + 3))
                       .square()
                       .remainder(11)
                       .view({rows, length + 1}),
             input = ids.narrow(1, 0, length), targets = ids.narrow(1, 1, length);
  const mw::StagePart part = mw::current_stage();
  auto context = trainer.model().context_parallel();
  if (!context) {
    at::Tensor out = net(part.first ? input : hidden);
    return {part.last ? mw::cross_entropy_sum(out, targets) : out, rows * length};
  }
  auto scope = context->scope(length, rows);
  return {mw::cross_entropy_sum(net(context->shard(input, 1, 0)), context->shard(targets, 1, -100)),
          rows * context->tokens_of(length, context->group()->rank())};
}

// Losses of a job that loads the built plugin, with ranks as threads.
template <class Model = Net>
std::vector<double> train(int64_t ranks, const std::vector<std::string>& settings) {
  const std::string toml = R"(
    schema = 1
    [plugins]
    load = [")" PLUGIN_LIBRARY R"("]
    [distributed]
    strategy = "my_strategy"
    [distributed.mp_policy]
    param_dtype = "float32"
    output_dtype = "float32"
    [step_scheduler]
    global_batch_size = 8
    local_batch_size = 2
    max_steps = 5
  )";
  std::vector<mw::Job> jobs;
  std::vector<Model> nets;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    jobs.push_back(mw::Job::from_text(toml, settings));
    torch::manual_seed(1);  // the same first weights on every rank
    nets.emplace_back();
  }
  std::vector<double> losses;
  mw::run_ranks(ranks, [&](const std::shared_ptr<mw::World>& world) {
    auto rank = static_cast<size_t>(world->rank());
    mw::Trainer trainer(jobs[rank], world, nets[rank].ptr());
    for (int64_t step = 0; step < trainer.max_steps(); ++step) {
      mw::StepResult result = trainer.step([&](int64_t micro, const at::Tensor& hidden) {
        // The data of a micro-batch depend on its number alone: any number of ranks sees the same.
        int64_t number = (step * trainer.accumulation() + micro) * trainer.data_parallel_size() +
                         trainer.data_parallel_rank();
        return loss_of(trainer, nets[rank], number, hidden);
      });
      if (rank == 0) losses.push_back(result.loss);
    }
  });
  return losses;
}

}  // namespace

TEST_CASE("eight ranks make eight shards") {
  mw::MeshPlan plan = make_strategy()->plan_mesh(request_for(8));
  CHECK(plan.device_mesh->size("dp_shard") == 8);
  CHECK(plan.dp == 8);
}

TEST_CASE("sizes that do not fit are refused with a setting that works") {
  mw::MeshRequest request = request_for(8);
  request.config.sizes().tp = 3;
  try {
    make_strategy()->plan_mesh(request);
    FAIL("accepted");
  } catch (const mw::Error& error) {
    CHECK((error.code() == mw::ErrorCode::world_not_divisible));
    CHECK(!error.helps().empty());
  }
}

// What follows is about this template's own options and sizes: it goes where they go.
TEST_CASE("copies can be turned off") {
  mw::MeshRequest request = request_for(8);
  request.config.sizes().dp_replicate = 2;
  CHECK(make_strategy()->plan_mesh(request).device_mesh->size("dp_shard") == 4);
  request.config.own().set("copies", std::string("none"));
  CHECK_THROWS_AS(make_strategy()->plan_mesh(request), mw::Error);
}

TEST_CASE("two and four ranks train as one does") {
  const std::vector<double> alone = train(1, {});
  CHECK(alone.back() < alone.front());
  struct Row {
    int64_t ranks;
    std::vector<std::string> settings;
  };
  for (const Row& row :
       std::vector<Row>{{2, {}},
                        {2, {"distributed.my_strategy.reshard_after_forward=false"}},
                        {2, {"distributed.my_strategy.prefetch_depth=2"}},
                        {2, {"distributed.my_strategy.prefetch_depth=0"}},
                        {4, {"distributed.dp_replicate_size=2"}}}) {
    std::vector<double> found = train(row.ranks, row.settings);
    REQUIRE(found.size() == alone.size());
    for (size_t i = 0; i < alone.size(); ++i)
      CHECK(found[i] == doctest::Approx(alone[i]).epsilon(1e-5));
  }
}

TEST_CASE("ranks that share samples train as one does, with no line of the strategy about them") {
  const std::vector<double> alone = train<Reader>(1, {});
  CHECK(alone.back() < alone.front());
  for (int64_t ranks : {2, 4})
    for (const char* method : {"all_gather", "ring", "ulysses"}) {
      std::vector<double> found = train<Reader>(
          ranks, {"distributed.cp_size=2", "distributed.context.method=" + std::string(method)});
      REQUIRE(found.size() == alone.size());
      for (size_t i = 0; i < alone.size(); ++i)
        CHECK(found[i] == doctest::Approx(alone[i]).epsilon(1e-5));
    }
}

TEST_CASE("stages train as one rank does, with no line of the strategy about them") {
  const std::vector<double> alone = train<Reader>(1, {});
  for (int64_t ranks : {2, 4})
    for (const char* resharded : {"true", "false"}) {
      std::vector<double> found = train<Reader>(
          ranks, {"distributed.pp_size=2", "distributed.pipeline.pp_microbatch_size=2",
                  "distributed.my_strategy.reshard_after_forward=" + std::string(resharded)});
      REQUIRE(found.size() == alone.size());
      for (size_t i = 0; i < alone.size(); ++i)
        CHECK(found[i] == doctest::Approx(alone[i]).epsilon(1e-5));
    }
}
