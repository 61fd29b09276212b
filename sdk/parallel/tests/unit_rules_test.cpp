// Unit rules by class name, and units of one dtype each (semantics 3.5).
#include "meshwright/unit_rules.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/container/modulelist.h>

#include <map>
#include <mutex>

#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"

namespace unit_rules_test {

using namespace meshwright;
using at::Tensor;

namespace {

struct Seen {
  at::ScalarType weight = at::kFloat, input = at::kFloat, output = at::kFloat;
};

// A feed-forward layer with a gate that wants float32, as routers do.
struct CellImpl : torch::nn::Module {
  CellImpl() {
    up = register_module("up", Linear(torch::nn::LinearOptions(6, 5).bias(false)));
    gate = register_module("gate", Linear(torch::nn::LinearOptions(6, 5).bias(false)));
    down = register_module("down", Linear(torch::nn::LinearOptions(5, 6).bias(false)));
  }
  Tensor forward(const Tensor& x) {
    seen.input = x.scalar_type();
    Tensor weight = gate(x.to(at::kFloat));
    seen.weight = gate->weight.scalar_type();
    seen.output = weight.scalar_type();
    Tensor inner = up(x);
    return x + down(inner * weight.sigmoid().to(inner.scalar_type()));
  }
  Linear up{nullptr}, gate{nullptr}, down{nullptr};
  Seen seen;
};
MESHWRIGHT_MODULE(Cell);

struct GatedNetImpl : torch::nn::Module {
  GatedNetImpl() {
    register_module("layers", layers);
    for (int i = 0; i < 2; ++i) layers->push_back(Cell());
    head = register_module("head", Linear(torch::nn::LinearOptions(6, 3).bias(false)));
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = layer->as<Cell>()->forward(x);
    return head(x);
  }
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(GatedNet);

GatedNet make_net() {
  GatedNet net;
  c10::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (const Tensor& p : net->parameters())
    p.copy_(at::randn(p.sizes(), at::detail::createCPUGenerator(seed++)) * 0.4);
  return net;
}

const MixedPrecision kSingle{DType::float32, DType::float32, DType::float32, true};
const MixedPrecision kHalf{DType::bfloat16, DType::float32, DType::float32, true};

using Names = std::vector<std::pair<std::string, std::vector<std::string>>>;

Names names_of(const ModelOutline& outline, const std::vector<PlannedUnit>& units) {
  Names out;
  for (const PlannedUnit& unit : units) {
    out.emplace_back(unit.name, std::vector<std::string>());
    for (size_t p : unit.parameters) out.back().second.push_back(outline.parameters[p].name);
  }
  return out;
}

struct Result {
  std::vector<double> losses;
  std::map<std::string, Tensor> parameters;
  std::map<std::string, at::ScalarType> stored;
  Seen seen;
  size_t update_groups = 0;
};

// Four steps of gradient descent under `rule`. `prepare` changes the model first.
Result train(int64_t ranks, const MixedPrecision& mp, const UnitRule& rule,
             const std::function<void(GatedNet&)>& prepare = {}) {
  std::mutex mutex;
  Result out;
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    GatedNet net = make_net();
    if (prepare) prepare(net);
    ModelOutline outline = outline_of(*net);
    ShardingPolicy policy;
    ShardGroups shards;
    policy.precision.mp = mp;
    shards.shard = world->everyone();
    shards.shard_axis = "dp_shard";
    auto model =
        shard_model(net.ptr(), bind_units(*net, outline, rule({outline, std::nullopt, mp})), policy,
                    shards, world);
    Result mine;
    for (int step = 0; step < 4; ++step) {
      model->begin_step();
      model->begin_micro_batch(GradientSync::reduce);
      int64_t rows = 12 / ranks;
      Tensor x =
          at::randn({12, 6}, at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step)))
              .narrow(0, world->rank() * rows, rows);
      Tensor loss = net(x).to(at::kFloat).square().mean();
      loss.backward();
      model->end_step();
      Tensor sum = loss.detach().to(at::kDouble).view({1}) / ranks;
      world->everyone()->all_reduce(sum).wait();
      mine.losses.push_back(sum.item<double>());
      c10::NoGradGuard no_grad;
      for (const FlatParameterGroup& group : model->update_groups())
        group.values.sub_(group.grads, 0.1);
      model->after_optimizer_step();
    }
    for (const ParallelParameter& p : model->parameters()) {
      mine.parameters[p.name] = model->full_tensor(p.name);
      mine.stored[p.name] = p.local.scalar_type();
    }
    mine.seen = net->layers[0]->as<Cell>()->seen;
    mine.update_groups = model->update_groups().size();
    std::lock_guard lock(mutex);
    if (world->rank() == 0) out = std::move(mine);
  });
  return out;
}

UnitRule general() {
  return [](const UnitRequest& r) { return plan_units(r.outline, r.reshard_after_forward); };
}

double worst(const Result& a, const Result& b) {
  double out = 0;
  for (size_t i = 0; i < a.losses.size(); ++i)
    out = std::max(out, std::abs(a.losses[i] / b.losses[i] - 1));
  for (const auto& [name, tensor] : a.parameters)
    out = std::max(out, (tensor.to(at::kDouble) - b.parameters.at(name).to(at::kDouble))
                            .abs()
                            .max()
                            .item<double>());
  return out;
}

std::string message_of(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL("no error");
  return "";
}

}  // namespace

TEST_CASE("one pair of dtypes: the units of the general rule") {
  GatedNet net = make_net();
  ModelOutline outline = outline_of(*net);
  CHECK((names_of(outline, dtype_aware_units({outline, std::nullopt, kHalf})) ==
         names_of(outline, plan_units(outline))));
}

TEST_CASE("two pairs: modules of the rarer one become units inside theirs") {
  GatedNet net = make_net();
  ModelOutline outline = outline_of(*net);
  std::vector<PlannedUnit> units =
      dtype_aware_units({outline, std::nullopt, kHalf}, {"*.gate.weight"});
  CHECK((names_of(outline, units) ==
         Names{{"layers.0.gate", {"layers.0.gate.weight"}},
               {"layers.0", {"layers.0.up.weight", "layers.0.down.weight"}},
               {"layers.1.gate", {"layers.1.gate.weight"}},
               {"layers.1", {"layers.1.up.weight", "layers.1.down.weight"}},
               {"root", {"head.weight"}}}));
  REQUIRE(units[0].mp);
  CHECK(units[0].mp->param == DType::float32);
  CHECK(units[0].mp->reduce == DType::float32);
  CHECK(units[0].mp->output == DType::float32);
  CHECK_FALSE(units[0].mp->cast_forward_inputs);
  CHECK_FALSE(units[1].mp);
  CHECK(units[0].reshard_after_forward);
  CHECK_FALSE(units[2].reshard_after_forward);  // as the last of its list
}

TEST_CASE(
    "three pairs: every largest uniform module is a unit; what cannot be separated is named") {
  GatedNet net = make_net();
  net->layers[0]->as<Cell>()->up->weight.set_data(
      net->layers[0]->as<Cell>()->up->weight.to(at::kBFloat16));
  ModelOutline outline = outline_of(*net);
  CHECK((names_of(outline,
                  dtype_aware_units({outline, std::nullopt, kSingle}, {"layers.0.gate.weight"})) ==
         Names{{"layers.0.up", {"layers.0.up.weight"}},
               {"layers.0.gate", {"layers.0.gate.weight"}},
               {"layers.0.down", {"layers.0.down.weight"}},
               {"layers.1", {"layers.1.up.weight", "layers.1.gate.weight", "layers.1.down.weight"}},
               {"root", {"head.weight"}}}));
  net->layers[1]->register_parameter("scale", at::ones({4}).to(at::kBFloat16));
  net->layers[1]->register_parameter("shift", at::ones({4}));
  ModelOutline changed = outline_of(*net);
  std::string text = message_of([&] { dtype_aware_units({changed, std::nullopt, kSingle}); },
                                ErrorCode::bad_module);
  CHECK(text.find("layers.1.s") != std::string::npos);
  CHECK(text.find("\"layers.1\"") != std::string::npos);
}

TEST_CASE("units of one dtype train as the general rule does") {
  Result expected = train(1, kSingle, general());
  for (int64_t ranks : {1, 2, 3})
    CHECK(worst(train(ranks, kSingle, dtype_aware_rule({"*.gate.weight"})), expected) < 1e-6);
}

TEST_CASE("a pinned unit computes in float32, takes inputs as they come, and returns float32") {
  Result found = train(2, kHalf, dtype_aware_rule({"*.gate.weight"}));
  CHECK((found.seen.input == at::kBFloat16));  // the layer's own unit casts
  CHECK((found.seen.weight == at::kFloat));
  CHECK((found.seen.output == at::kFloat));
  Result plain = train(2, kSingle, general());
  double off = worst(found, plain);
  CHECK(off > 1e-7);
  CHECK(off < 3e-2);
}

TEST_CASE("storage of several dtypes: each keeps its own, on every number of ranks") {
  auto narrow_gate = [](GatedNet& net) {
    for (const auto& layer : *net->layers) {
      Tensor& weight = layer->as<Cell>()->gate->weight;
      weight.set_data(weight.to(at::kBFloat16));
    }
  };
  Result one = train(1, kSingle, dtype_aware_rule(), narrow_gate),
         two = train(2, kSingle, dtype_aware_rule(), narrow_gate);
  CHECK(one.update_groups == 2);
  CHECK((two.stored.at("layers.0.gate.weight") == at::kBFloat16));
  CHECK((two.stored.at("layers.0.up.weight") == at::kFloat));
  CHECK((two.parameters.at("layers.1.gate.weight").scalar_type() == at::kBFloat16));
  CHECK(worst(one, two) < 2e-3);  // a bfloat16 rounding of the gate's weights
  CHECK(message_of([&] { train(1, kSingle, general(), narrow_gate); }, ErrorCode::bad_module)
            .find("layers.0") != std::string::npos);
}

TEST_CASE("the registry takes one rule a class name") {
  CHECK(find_unit_rule("Qwen3_5ForCausalLM"));
  CHECK(find_unit_rule("DeepseekV4ForCausalLM"));
  CHECK_FALSE(find_unit_rule("LlamaForCausalLM"));
  register_unit_rule("OfThisTest", general());
  CHECK(find_unit_rule("OfThisTest"));
  message_of([] { register_unit_rule("OfThisTest", general()); }, ErrorCode::conflict);
  message_of([] { register_unit_rule("Qwen3_5ForCausalLM", general()); }, ErrorCode::conflict);
  message_of([] { register_unit_rule("", general()); }, ErrorCode::plugin_bad_descriptor);
  message_of([] { register_unit_rule("Empty", {}); }, ErrorCode::plugin_bad_descriptor);
}

}  // namespace unit_rules_test
