// What the strategy makes of a live model: buffers, their cuts, and what is refused.
// Before doctest: LibTorch has a CHECK of its own.
#include <ATen/ops/arange.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/modulelist.h>

#include "meshwright/nn/layers.h"
#include "meshwright/nn/module.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "plugins/plugin_test.h"
#include "sdk/base/check_parts.h"

#include <algorithm>
#include <mutex>
#include <set>

using namespace plugin_test;
using at::Tensor;

namespace {

struct LayerImpl : torch::nn::Module {
  LayerImpl() { mlp = register_module("mlp", Linear(torch::nn::LinearOptions(5, 5))); }
  Tensor forward(const Tensor& x) { return x + mlp(x); }
  Linear mlp{nullptr};
};
MESHWRIGHT_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed_tokens", Embedding(7, 5));
    register_module("layers", layers);
    for (int i = 0; i < 2; ++i) layers->push_back(Layer());
    head = register_module("lm_head", Linear(torch::nn::LinearOptions(5, 7).bias(false)));
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = embed(ids);
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
  Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Net);

Net make_net() {
  Net net;
  c10::NoGradGuard no_grad;
  double from = 0;
  for (const Tensor& p : net->parameters()) {
    p.copy_(at::arange(from, from + static_cast<double>(p.numel())).view(p.sizes()));
    from += 100;
  }
  return net;
}

}  // namespace

TEST_CASE("with context parallelism the buffers are cut over dp_cp; training with it is refused") {
  std::mutex mutex;
  std::map<std::string, int64_t> held;
  run_ranks(4, [&](const std::shared_ptr<World>& world) {
    MeshRequest wanted = request(4, {{"cp_size", int64_t{2}}});
    wanted.config.mp_policy() = {DType::float32, DType::float32, DType::float32, true};
    Net net = make_net();
    ModelOutline outline = outline_of(*net);
    MeshPlan mesh = make()->plan_mesh(wanted);
    TpPlan tp;
    ParallelizeRequest given{net.ptr(), outline, mesh, tp, wanted.config, world};
    ErrorCode refused = ErrorCode::internal;
    try {
      make()->parallelize(given);
    } catch (const Error& error) {
      refused = error.code();
    }
    const ShardGroups shards = shard_groups(given);
    std::string axis = shards.shard_axis;
    std::vector<int64_t> ranks = shards.shard->ranks();
    int64_t data = shards.data ? shards.data->size() : 0;
    const LiveShardingRequest live(given);
    const ShardingPlan plan = flat_plan(live);
    std::unique_ptr<ParallelModel> model =
        shard_model(net.ptr(), bind_units(*net, outline, plan.units), plan.sharding, shards, world);
    bool placed = true, equal = true;
    for (const ParallelParameter& p : model->parameters()) {
      placed = placed &&
               p.placement == std::vector<std::pair<std::string, std::string>>{{"dp_cp", "flat"}};
      equal = equal && model->full_tensor(p.name).equal(make_net()->named_parameters()[p.name]);
    }
    std::lock_guard lock(mutex);
    for (const ParallelParameter& p : model->parameters()) held[p.name] += p.local.numel();
    CHECK(refused == ErrorCode::bad_module);  // it has no attention core
    CHECK(axis == "dp_cp");
    CHECK(ranks == std::vector<int64_t>{0, 1, 2, 3});
    CHECK(data == 0);  // all ranks have tokens of their own
    CHECK(placed);
    CHECK(equal);
  });
  for (const ParameterOutline& p : outline_of(*make_net()).parameters)
    CHECK(held[p.name] == element_count(p.shape));
}

TEST_CASE("sums of micro-batches that are rounded after each are told") {
  const ModelOutline outline = outline_of(*make_net());
  const TpPlan tp;
  auto told = [&](int64_t level, bool wide, const Workload& work) {
    MeshRequest wanted = request(2, {});
    wanted.config.own().set("zero_dp_strategy", level);
    wanted.config.own().set("grad_reduce_in_fp32", wide);
    const MeshPlan mesh = make()->plan_mesh(wanted);
    const auto notices = make()->plan_sharding({outline, mesh, tp, wanted.config, work, 0}).notices;
    return std::count_if(notices.begin(), notices.end(), [](const std::string& text) {
      return text.starts_with("gradients of 4 micro-batches are added up in bfloat16");
    });
  };
  const Workload narrow{.accumulation = 4, .storage = DType::bfloat16};
  CHECK(told(3, false, narrow) == 1);
  CHECK(told(2, false, narrow) == 1);
  CHECK(told(1, false, narrow) == 1);
  CHECK(told(0, false, narrow) == 1);
  CHECK(told(3, true, narrow) == 0);
  CHECK(told(3, false, {.accumulation = 4}) == 0);
  CHECK(told(3, false, {.storage = DType::bfloat16}) == 0);
}

TEST_CASE(
    "live units and buckets are those of the plan: whole layers, what is left in buckets, or one "
    "by one") {
  Net net = make_net();
  ModelOutline outline = outline_of(*net);
  const MeshRequest wanted = request(1);
  const MeshPlan mesh = make()->plan_mesh(wanted);
  const TpPlan tp;
  auto names = [&](const FlatBufferPolicy& policy) {
    std::vector<std::pair<std::string, size_t>> out;
    const ShardingPlan plan = flat_plan({outline, mesh, tp, wanted.config}, {.flat = policy});
    for (const UnitSpec& unit : bind_units(*net, outline, plan.units)) {
      if (unit.parameters.empty()) continue;  // the outermost module, for its casts alone
      out.emplace_back(unit.name, unit.parameters.size());
      CHECK(unit.reshard_after_forward == unit.name.starts_with("layers."));
    }
    return out;
  };
  using Names = std::vector<std::pair<std::string, size_t>>;
  CHECK((names({}) == Names{{"layers.0", 2}, {"layers.1", 2}, {"root", 2}}));
  CHECK((names({.bucket_elements = 1}) ==
         Names{{"layers.0", 2}, {"layers.1", 2}, {"root[0]", 1}, {"root[1]", 1}}));
  CHECK((names({.unit_classes = {"somewhere.Layer"}}) ==
         Names{{"layers.0", 2}, {"layers.1", 2}, {"root", 2}}));
  CHECK_THROWS_AS(names({.unit_classes = {"Lyer"}}), Error);
}
