// Low-rank adapters beside those that LibTorch trains by hand, on every layout, and what they leave
// of the model. Long since all cases share its layouts. Before doctest: LibTorch has a CHECK of its
// own.
#include "engine/train/run/tests/megatron_fsdp.h"
#include "engine/train/run/tests/pair_model.h"
#include "engine/train/run/tests/pipeline_layouts.h"
#include "engine/train/run/tests/saved.h"
#include "sdk/comm/tests/sampled.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <set>

#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "engine/train/step/load_weights.h"
#include "meshwright/nn/layers.h"

namespace adapters_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

constexpr int kSteps = 5;

struct Case {
  std::string name;
  SmallModel model;
  std::vector<std::string> sets;
  double scale;
  std::set<std::string> thawed = {};
  std::map<std::string, double> others = {};  // scales of modules that end so

  double scale_of(const std::string& module) const {
    for (const auto& [last, other] : others)
      if (module.ends_with(last)) return other;
    return scale;
  }
};

std::vector<Case> cases() {
  return {{"all Linears", kLlama, {"lora.r=4", "lora.alpha=6"}, 1.5},
          {"biases, attention alone",
           kBiases,
           {"lora.r=2", "lora.alpha=3", "lora.rslora=true",
            R"(lora.target_modules=["q_proj", "model.layers.*.self_attn.[vo]_proj"])"},
           3 / std::sqrt(2)},
          {"fused rows, the head, and norms that train as a whole",
           kPhi3,
           {"lora.r=3", "lora.alpha=6", "lora.target_modules=[\"all-linear\", \"lm_head\"]",
            "lora.exclude_modules=[\"model.layers.1.mlp.down_proj\"]",
            R"(optimizer.group=[{pattern = "model.norm.weight", lr_factor = 0.5, frozen = false},
                {pattern = "*.lora_B.*", lr_factor = 2}])"},
           2,
           {"model.norm.weight"}}};
}

bool is_factor(const std::string& name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

struct Came {
  Curve curve;
  std::vector<double> rates;
  std::map<std::string, at::Tensor> first;  // parameters before the first step
  int64_t state = 0, gradients = 0;         // elements of rank 0
};

Came came_of(const Layout& layout) {
  Came out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    ParallelModel& model = rank.trainer.model();
    Came mine;
    auto all = [&] {
      std::map<std::string, at::Tensor> parameters;
      for (const ParallelParameter& p : model.parameters())
        parameters[p.name] = model.full_tensor(p.name).clone();
      return parameters;
    };
    mine.first = all();
    for (int step = 0; step < kSteps; ++step) {
      const StepResult result = rank.step();
      mine.curve.losses.push_back(result.loss);
      mine.curve.norms.push_back(result.grad_norm);
      mine.rates.push_back(result.lr);
    }
    mine.curve.parameters = all();
    for (const train::Optimizer::State& each : train::optimizer_of(rank.trainer).state())
      for (const at::Tensor& tensor : each.tensors) mine.state += tensor.numel();
    for (const FlatParameterGroup& group : model.update_groups())
      mine.gradients += group.grads.numel();
    std::lock_guard lock(mutex);
    if (world->rank() == 0) {
      mine.first.merge(out.first);
      mine.curve.parameters.merge(out.curve.parameters);
      out = std::move(mine);
    } else {  // stages of a pipeline have others each
      out.first.merge(mine.first);
      out.curve.parameters.merge(mine.curve.parameters);
    }
  });
  return out;
}

// The same steps by LibTorch alone, in one process: the weights of a plain model are replaced by
// W + scale B A in each forward.
Curve by_torch(const Case& one, const std::string& path, const Came& ours) {
  modules::CausalLM net = modules::build_model(path, DType::float32, at::kCPU);
  std::map<std::string, at::Tensor> leaves;
  for (auto& item : net->named_parameters()) {
    c10::NoGradGuard no_grad;
    if (ours.first.contains(item.key())) item.value().copy_(ours.first.at(item.key()));
    item.value().set_requires_grad(one.thawed.contains(item.key()));
    if (one.thawed.contains(item.key())) leaves.emplace(item.key(), item.value());
  }
  struct Beside {
    torch::nn::LinearImpl* linear;
    at::Tensor weight, in, out;
    double scale;
  };
  std::vector<Beside> adapted;
  for (auto& item : net->named_modules("", /*include_self=*/false)) {
    const std::string a = item.key() + ".lora_A.weight", b = item.key() + ".lora_B.weight";
    if (!ours.first.contains(a)) continue;
    for (const std::string& name : {a, b})
      leaves[name] = ours.first.at(name).clone().set_requires_grad(true);
    auto* linear = item.value()->as<torch::nn::LinearImpl>();
    adapted.push_back(
        {linear, linear->weight, leaves.at(a), leaves.at(b), one.scale_of(item.key())});
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  std::vector<double> factors;
  for (auto& [name, p] : leaves) {
    auto options = std::make_unique<torch::optim::AdamWOptions>(1e-3);
    options->betas({0.9, 0.95}).eps(1e-5).weight_decay(0.1);
    groups.emplace_back(std::vector<at::Tensor>{p}, std::move(options));
    const bool grouped = !one.thawed.empty();
    factors.push_back(!grouped                     ? 1
                      : one.thawed.contains(name)  ? 0.5
                      : name.ends_with("B.weight") ? 2
                                                   : 1);
  }
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(1e-3));
  Curve out;
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor ids = at::empty({kBatch, kLength + 1}, at::kLong);
    for (int64_t row = 0; row < kBatch; ++row)
      fill_sample(step * kBatch + row, net->outline().vocab_size,
                  ids.mutable_data_ptr<int64_t>() + row * (kLength + 1));
    optimizer.zero_grad();
    for (Beside& each : adapted)
      each.linear->weight = each.weight + each.scale * each.out.matmul(each.in);
    const at::Tensor logits = net(ids.narrow(1, 0, kLength)),
                     loss = at::cross_entropy_loss(logits.flatten(0, 1),
                                                   ids.narrow(1, 1, kLength).flatten());
    loss.backward();
    std::vector<at::Tensor> norms;
    for (const auto& [name, p] : leaves) norms.push_back(p.grad().to(at::kDouble).norm());
    const double norm = at::stack(norms).norm().item<double>();
    {
      c10::NoGradGuard no_grad;
      for (const auto& [name, p] : leaves) p.grad().mul_(std::min(1.0, 1.0 / (norm + 1e-6)));
    }
    for (size_t g = 0; g < factors.size(); ++g)
      static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[g].options())
          .lr(factors[g] * ours.rates.at(static_cast<size_t>(step)));
    optimizer.step();
    out.losses.push_back(loss.item<double>());
    out.norms.push_back(norm);
  }
  out.parameters = ours.first;  // the rest stays
  for (const auto& [name, p] : leaves) out.parameters[name] = p.detach().clone();
  return out;
}

const std::string kWholeBase = "lora.base_sharding=\"replicate\"";

struct Where {
  const char* strategy;
  OnMesh mesh;
  std::vector<std::string> more = {};
};

// Attention is whole on every rank.
const std::string kMlpPlan =
    R"(distributed.tp_plan={"model.layers.*.mlp.gate_proj"="colwise",)"
    R"("model.layers.*.mlp.*up_proj"="colwise","model.layers.*.mlp.down_proj"="rowwise"})";

std::vector<Where> everywhere() {
  std::vector<Where> out = {
      {"ddp", {1, {}}},
      {"ddp", {2, {}}},
      {"ddp", {2, {}}, {"distributed.activation_checkpointing=\"full\""}},
      {"fsdp2", {1, {}}},
      {"fsdp2", {2, {}}},
      {"fsdp2", {4, {}}},
      {"fsdp2", {4, {kReplicate2}}},
      {"fsdp2", {2, {}}, {kWholeBase}},
      {"fsdp2", {2, {"distributed.cp_size=2"}}},
      {"fsdp2", {2, {}}, {"distributed.activation_checkpointing=\"full\""}},
      {"fsdp2", {2, {kPp2}}},
      {"fsdp2", {4, {kPp2}}},
      {"fsdp2", {4, {kPp2}}, {kWholeBase}},
      {"fsdp2", {4, {kTp2}}, {kWholeBase}},
      {"fsdp2", {2, {kTp2}}},
      {"fsdp2", {2, {kTp2}}, {kMlpPlan}},
      {"fsdp2", {2, {kTp2}}, {kSequence}},
      {"fsdp2", {4, {kTp2}}, {kSequence, kAsync}},
      {"fsdp2", {4, {kTp2}}, {"distributed.activation_checkpointing=\"full\""}},
      {"fsdp2", {4, {kTp2, kPp2}}},
      {"megatron_fsdp", {4, {kTp2}}, {flat_level(2)}}};
  for (int level : {0, 1, 2, 3}) out.push_back({"megatron_fsdp", {2, {}}, {flat_level(level)}});
  out.push_back({"megatron_fsdp", {2, {}}, {flat_level(3), kWholeBase}});
  return out;
}

Layout layout_of(const std::string& model, const Case& one, const Where& where) {
  Layout out = calm_layout(model, {where.mesh.ranks, {}}, one.sets);
  out.strategy = where.strategy;
  int64_t dp = where.mesh.ranks;
  for (const std::string& set : where.mesh.sets)
    if (set == "distributed.cp_size=2" || set == kPp2 || set == kTp2) dp /= 2;
  out.sets.push_back("step_scheduler.local_batch_size=" + std::to_string(kBatch / dp / 2));
  for (const auto* sets : {&where.mesh.sets, &where.more})
    out.sets.insert(out.sets.end(), sets->begin(), sets->end());
  return out;
}

struct PlainImpl : torch::nn::Module {
  PlainImpl() { only = register_module("only", torch::nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x) { return only(x); }
  torch::nn::Linear only{nullptr};
};
MESHWRIGHT_MODULE(Plain);

}  // namespace

TEST_CASE("adapters are those that LibTorch trains by hand, on every layout, and alone") {
  TestFolder folder("adapters");
  size_t number = 0;  // a third: each layout with one case
  for (const Case& one : cases()) {
    size_t turn = number++;
    const std::string model = write_model(folder.path, one.model);
    const Came alone = came_of(layout_of(model, one, {"ddp", kAlone}));
    const Curve truth = by_torch(one, model, alone);
    INFO(one.name);
    CHECK(strays(alone.curve, truth) == "");
    int64_t trained = 0;
    for (const auto& [name, tensor] : alone.first)
      if (is_factor(name) || one.thawed.contains(name)) trained += tensor.numel();
    CHECK(trained > 0);
    CHECK(alone.state == 2 * trained);
    CHECK(alone.gradients == trained);
    for (const Where& where : everywhere()) {
      if (!sampled(turn++, 3)) continue;
      const Layout layout = layout_of(model, one, where);
      INFO(layout.text());
      const Came came = came_of(layout);
      CHECK(strays(came.curve, truth) == "");
      for (const auto& [name, tensor] : came.first) {
        CAPTURE(name);
        CHECK(came.curve.parameters.at(name).equal(tensor) ==
              !(is_factor(name) || one.thawed.contains(name)));
      }
      CHECK(came.state <= 2 * trained * 21 / 20);
    }
  }
}

TEST_CASE("adapters of two ranks and three scales are those that LibTorch trains by hand") {
  TestFolder folder("adapters_of_two_ranks");
  const Case one{
      "two ranks",
      kLlama,
      {"lora.r=4", "lora.alpha=6", R"(lora.rank_pattern={q_proj=3, "layers.1.mlp.down_proj"=7})",
       R"(lora.alpha_pattern={q_proj=9, "model\\..*\\.o_proj"=10})"},
      1.5,
      {},
      {{"q_proj", 3}, {"layers.1.mlp.down_proj", 6.0 / 7}, {"o_proj", 2.5}}};
  const std::string model = write_model(folder.path, one.model);
  const Came alone = came_of(layout_of(model, one, {"ddp", kAlone}));
  const std::string name = "model.layers.1.mlp.down_proj.lora_A.weight";
  CHECK(alone.first.at(name).size(0) == 7);
  CHECK(alone.first.at("model.layers.0.mlp.down_proj.lora_A.weight").size(0) == 4);
  CHECK(alone.first.at("model.layers.1.self_attn.q_proj.lora_B.weight").size(1) == 3);
  const Curve truth = by_torch(one, model, alone);
  CHECK(strays(alone.curve, truth) == "");
  std::vector<Layout> layouts;
  for (const Where& where : std::vector<Where>{{"ddp", {2, {}}},
                                               {"fsdp2", {2, {}}},
                                               {"fsdp2", {2, {kTp2}}},
                                               {"fsdp2", {2, {kTp2}}, {kSequence}},
                                               {"fsdp2", {2, {kPp2}}},
                                               {"megatron_fsdp", {2, {}}, {flat_level(3)}}}) {
    layouts.push_back(layout_of(model, one, where));
    INFO(layouts.back().text());
    CHECK(strays(came_of(layouts.back()).curve, truth) == "");
  }
  CHECK(carried_over(layouts, folder.path / "runs") == "");
}

TEST_CASE("adapters beside experts that stay are the same under moe_ep as in one process") {
  TestFolder folder("adapters_of_experts");
  const std::string model = write_model(folder.path, kMixtral);
  const Case one{"experts", kMixtral, {"lora.r=4", "lora.alpha=6"}, 1.5};
  const Came alone = came_of(layout_of(model, one, {"ddp", kAlone}));
  const std::string attention =
      R"(distributed.tp_plan={"model.layers.*.self_attn.[qkv]_proj"="colwise",)"
      R"("model.layers.*.self_attn.o_proj"="rowwise"})";
  for (const Where& where : std::vector<Where>{{"moe_ep", {2, {}}},
                                               {"moe_ep", {2, {kEp2}}},
                                               {"fsdp2", {4, {kEp2}}},
                                               {"fsdp2", {4, {kEp2, kTp2}}, {attention}},
                                               {"fsdp2", {4, {kEp2}}, {kWholeBase}}}) {
    const Layout layout = layout_of(model, one, where);
    INFO(layout.text());
    const Came came = came_of(layout);
    CHECK(strays(came.curve, alone.curve) == "");
    for (const auto& [name, tensor] : came.first) {
      CAPTURE(name);
      CHECK(came.curve.parameters.at(name).equal(tensor) == !is_factor(name));
    }
  }
}

// One that shards as fsdp2 does, and has a tensor-parallel plan of its own: MLPs and the head.
TEST_CASE("adapters under a strategy of a third party are those of ddp and of fsdp2") {
  TestFolder folder("adapters_of_a_third_party");
  const Case one = cases()[0];
  const std::string model = write_model(folder.path, one.model),
                    load = "plugins.load=[\"" MESHWRIGHT_BUILD_DIR
                           "/fixtures/plugins/libmeshwright_fixture_tp_plan.so\"]";
  const char* strategy = "fixture_tp_plan";
  const Curve alone = came_of(layout_of(model, one, {"ddp", kAlone})).curve,
              sharded = came_of(layout_of(model, one, {"fsdp2", {2, {}}})).curve;
  // Alone first: its plan is registered once a process, and not by two ranks at a time.
  for (const Where& where : std::vector<Where>{
           {strategy, kAlone, {load}},
           {strategy, {2, {}}, {load}},
           {strategy, {2, {}}, {load, kWholeBase}},
           {strategy, {2, {kTp2}}, {load, "distributed.tp_plan=\"fixture_mlp_and_head\""}}}) {
    const Layout layout = layout_of(model, one, where);
    INFO(layout.text());
    const Came came = came_of(layout);
    for (const Curve* truth : {&alone, &sharded}) {
      CHECK(strays(came.curve, *truth) == "");
      for (const auto& [name, tensor] : truth->parameters) {
        if (!is_factor(name)) continue;
        CAPTURE(name);
        const double far = (came.curve.parameters.at(name) - tensor).norm().item<double>();
        CHECK(far < 1e-6 * tensor.norm().item<double>());
      }
    }
    for (const auto& [name, tensor] : came.first) {
      CAPTURE(name);
      CHECK(came.curve.parameters.at(name).equal(tensor) == !is_factor(name));
    }
  }
}

TEST_CASE("dropout of adapters drops the same on every layout") {
  TestFolder folder("adapters_dropout");
  const std::string model = write_model(folder.path, kLlama);
  Case one{"dropout", kLlama, {"lora.r=4", "lora.alpha=6", "lora.dropout=0.3"}, 1.5};
  const Came alone = came_of(layout_of(model, one, {"ddp", kAlone}));
  const std::vector<std::string> again = {"distributed.activation_checkpointing=\"full\""};
  for (const Where& where : std::vector<Where>{{"ddp", {2, {}}, again},
                                               {"fsdp2", {4, {kReplicate2}}},
                                               {"fsdp2", {2, {"distributed.cp_size=2"}}, again},
                                               {"fsdp2", {2, {kPp2}}, again},
                                               {"fsdp2", {2, {kTp2}}},
                                               {"fsdp2", {2, {kTp2}}, {kSequence}},
                                               {"fsdp2", {2, {kTp2}}, {kSequence, kAsync}},
                                               {"megatron_fsdp", {2, {}}, {flat_level(3)}}}) {
    const Layout layout = layout_of(model, one, where);
    INFO(layout.text());
    CHECK(strays(came_of(layout).curve, alone.curve) == "");
  }
  one.sets.back() = "lora.dropout=0";
  CHECK(strays(came_of(layout_of(model, one, {"ddp", kAlone})).curve, alone.curve) != "");
}

TEST_CASE("adapters learn the same where their gradients wait, and under autocast nearly") {
  TestFolder folder("adapters_put_off");
  const Case one{"four layers", kStaged, {"lora.r=4", "lora.alpha=6"}, 1.5};
  const std::string model = write_model(folder.path, one.model);
  const Came alone = came_of(layout_of(model, one, {"ddp", kAlone}));
  const Layout staged = layout_of(model, one, {"fsdp2", {2, {kPp2}}, {schedule("ZBVZeroBubble")}});
  INFO(staged.text());
  CHECK(strays(came_of(staged).curve, alone.curve) == "");
  const Came cast = came_of(
      layout_of(model, one, {"fsdp2", {2, {}}, {"distributed.autocast_dtype=\"bfloat16\""}}));
  CHECK(farthest(cast.curve.losses, alone.curve.losses) > 1e-7);
  CHECK(farthest(cast.curve.losses, alone.curve.losses) < 1e-2);
  for (const auto& [name, tensor] : cast.curve.parameters) {
    CAPTURE(name);
    CHECK((tensor.scalar_type() == at::kFloat));
    CHECK(tensor.equal(cast.first.at(name)) == !is_factor(name));
  }
}

TEST_CASE("adapters begin alike on every layout, and add nothing at first") {
  TestFolder folder("adapters_at_first");
  const std::string model = write_model(folder.path, kLlama);
  std::map<std::string, at::Tensor> first;
  for (const char* init : {"kaiming", "gaussian"}) {
    const Case one{"", kLlama, {"lora.r=4", std::string("lora.init=") + init}, 8};
    for (const Where& where : std::vector<Where>{{"ddp", {1, {}}},
                                                 {"fsdp2", {4, {}}},
                                                 {"megatron_fsdp", {2, {}}, {flat_level(3)}},
                                                 {"fsdp2", {4, {kTp2}}}}) {
      const Layout layout = layout_of(model, one, where);
      INFO(layout.text());
      std::map<std::string, at::Tensor> mine;
      run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
        Rank rank(layout, world);
        train::load_weights(
            rank.trainer, "",
            [&](const ParameterOutline& p) {
              return p.name.find(".lora_") == std::string::npos
                         ? InitialValue{}
                         : plan::initial_adapter(p, init == std::string("gaussian"));
            },
            7);
        std::map<std::string, at::Tensor> all;
        for (const ParallelParameter& p : rank.trainer.model().parameters())
          all[p.name] = rank.trainer.model().full_tensor(p.name).clone();
        if (world->rank() == 0) mine = std::move(all);
      });
      if (where.mesh.ranks == 1) first = mine;
      for (const auto& [name, tensor] : mine) {
        CAPTURE(name);
        CHECK(tensor.equal(first.at(name)));
        if (name.ends_with("lora_B.weight")) CHECK(tensor.eq(0).all().item<bool>());
        if (!name.ends_with("lora_A.weight")) continue;
        const double in = static_cast<double>(tensor.size(1)),
                     most = tensor.abs().max().item<double>(),
                     deviation = tensor.to(at::kDouble).square().mean().sqrt().item<double>();
        if (init == std::string("kaiming")) {
          CHECK(most <= 1 / std::sqrt(in));
          CHECK(std::abs(deviation * std::sqrt(3 * in) - 1) < 0.2);
        } else {
          CHECK(std::abs(deviation * 4 - 1) < 0.25);
        }
      }
    }
  }
}

TEST_CASE("a checkpoint with adapters goes on on every other layout") {
  TestFolder folder("adapter_checkpoints");
  const Case one = cases()[2];
  const std::string model = write_model(folder.path, one.model);
  std::vector<Layout> all;
  for (const Where& where : std::vector<Where>{{"ddp", {1, {}}},
                                               {"ddp", {2, {}}},
                                               {"megatron_fsdp", {2, {}}, {flat_level(1)}},
                                               {"fsdp2", {2, {}}, {kWholeBase}},
                                               {"fsdp2", {4, {}}},
                                               {"fsdp2", {4, {kTp2}}, {kSequence}},
                                               {"megatron_fsdp", {4, {kTp2}}, {flat_level(3)}},
                                               {"fsdp2", {2, {"distributed.cp_size=2"}}},
                                               {"fsdp2", {2, {kPp2}}},
                                               {"fsdp2", {4, {kTp2, kPp2}}}})
    all.push_back(layout_of(model, one, where));
  CHECK(carried_over(all, folder.path / "runs") == "");
  // From a layout that cuts layers, and beside experts that are somewhere else each time.
  const Case four{"four layers", kStaged, {"lora.r=4", "lora.alpha=6"}, 1.5},
      experts{"experts", kMixtral, {"lora.r=4", "lora.alpha=6"}, 1.5};
  for (const auto& [each, layouts] : std::vector<std::pair<Case, std::vector<Where>>>{
           {four,
            {{"fsdp2", {4, {kPp2}}},
             {"fsdp2", {2, {kPp2}}, {schedule("ZBVZeroBubble")}},
             {"fsdp2", {2, {"distributed.cp_size=2"}}},
             {"megatron_fsdp", {2, {}}, {flat_level(2)}}}},
           {experts,
            {{"fsdp2", {4, {kEp2}}},
             {"ddp", kAlone},
             {"moe_ep", {2, {kEp2}}},
             {"fsdp2", {2, {}}}}}}) {
    INFO(each.name);
    const std::string path = write_model(folder.path, each.model);
    std::vector<Layout> among;
    for (const Where& where : layouts) among.push_back(layout_of(path, each, where));
    CHECK(carried_over(among, folder.path / each.model.name) == "");
  }
}

TEST_CASE("a module of one's own gets adapters that hold values, and computes as before at first") {
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Job job = pair_job(
        {{"optimizer.lr", "0.01"}, {"lr_scheduler.lr_warmup_steps", "0"}, {"lora.r", "3"}});
    Pair net;
    const at::Tensor x = at::arange(24, at::kFloat).view({4, 6}).sin(),
                     before = net(x).detach().clone(), up = net->up->weight.detach().clone();
    Trainer trainer(job, world, net.ptr());
    CHECK(net(x).equal(before));
    for (int step = 0; step < 3; ++step)
      trainer.step([&](int64_t) { return MicroBatchLoss{net(x).square().sum(), 4}; });
    CHECK(net->up->weight.equal(up));
    CHECK((net(x) - before).abs().max().item<double>() > 1e-3);
    CHECK(net->named_parameters()["up.lora_B.weight"].abs().max().item<double>() > 0);
  });
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Job job;
    job.set("lora.r", "3");
    Plain net;
    try {
      Trainer trainer(job, world, net.ptr());
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_module);
      CHECK(error.message() == "only can have no adapter: it has no hooks");
    }
  });
}

// Values of a frozen weight are rounded to bfloat16 once, when they are stored or when they are
// cast.
TEST_CASE("a base in what it computes in trains adapters to the same bits in half the memory") {
  TestFolder folder("adapters_base_dtype");
  const std::string model = write_model(folder.path, kPhi3);
  struct Bits {
    std::vector<double> losses, norms;
    std::map<std::string, at::Tensor> parameters;
    int64_t base = 0;  // bytes of rank 0
  };
  auto bits_of = [&](const Where& where, const std::string& dtype, DType stored = DType::float32) {
    Case one = cases()[2];
    one.sets.insert(one.sets.end(),
                    {"lora.base_dtype=" + dtype, "distributed.mp_policy.param_dtype=bfloat16",
                     "model.torch_dtype=" + std::string(dtype_name(stored))});
    Layout layout = layout_of(model, one, where);
    layout.storage = stored;
    Bits out;
    std::mutex mutex;
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      ParallelModel& parallel = rank.trainer.model();
      {
        c10::NoGradGuard no_grad;
        for (const ParallelParameter& p : parallel.parameters())
          modules::initialize(*rank.net, p, 1);
      }
      parallel.after_optimizer_step();
      std::map<std::string, at::Tensor> first, last;
      Bits mine;
      for (const ParallelParameter& p : parallel.parameters()) {
        first[p.name] = parallel.full_tensor(p.name).clone();
        if (!is_factor(p.name) && !one.thawed.contains(p.name))
          mine.base += static_cast<int64_t>(p.local.nbytes());
      }
      for (int step = 0; step < kSteps; ++step) {
        const StepResult result = rank.step();
        mine.losses.push_back(result.loss);
        mine.norms.push_back(result.grad_norm);
      }
      for (const ParallelParameter& p : parallel.parameters()) {
        const at::Tensor now = parallel.full_tensor(p.name).clone();
        const bool trains = is_factor(p.name) || one.thawed.contains(p.name);
        if (!trains && !now.equal(first.at(p.name))) throw std::runtime_error(p.name + " moved");
        if (trains) mine.parameters[p.name] = now;
      }
      std::lock_guard lock(mutex);
      if (world->rank() == 0) out = std::move(mine);
    });
    return out;
  };
  for (const Where& where : std::vector<Where>{{"ddp", {2, {}}},
                                               {"fsdp2", {1, {}}},
                                               {"fsdp2", {3, {}}},
                                               {"fsdp2", {2, {kTp2}}},
                                               {"fsdp2", {4, {kReplicate2}}},
                                               {"megatron_fsdp", {2, {}}, {flat_level(1)}},
                                               {"megatron_fsdp", {2, {}}, {flat_level(3)}}}) {
    INFO(where.strategy, " on ", where.mesh.ranks);
    const Bits wide = bits_of(where, "float32");
    // By lora.base_dtype, or because all of the model is: adapters are float32 all the same.
    for (const DType stored : {DType::float32, DType::bfloat16}) {
      CAPTURE(std::string(dtype_name(stored)));
      const Bits narrow = bits_of(where, "auto", stored);
      CHECK(narrow.losses == wide.losses);
      CHECK(narrow.norms == wide.norms);
      for (const auto& [name, tensor] : wide.parameters) {
        CAPTURE(name);
        CHECK((tensor.scalar_type() == at::kFloat));
        CHECK((narrow.parameters.at(name).scalar_type() == at::kFloat));
        CHECK(narrow.parameters.at(name).equal(tensor));
      }
      CHECK(2 * narrow.base == wide.base);
    }
  }
}

TEST_CASE(
    "a base of its own dtype is saved, goes on elsewhere, and is not rounded behind one's back") {
  TestFolder folder("adapters_base_saved");
  const Case one = cases()[0];
  const std::string model = write_model(folder.path, one.model),
                    run = (folder.path / "run").string();
  auto layout = [&](const char* strategy, int64_t ranks, const std::string& dtype) {
    Layout out = layout_of(model, one, {strategy, {ranks, {}}});
    out.sets.push_back("lora.base_dtype=" + dtype);
    return out;
  };
  std::map<std::string, at::Tensor> saved;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout("fsdp2", 2, "bfloat16"), world);
    rank.initialize();
    rank.step();
    rank.trainer.save(run);
    std::map<std::string, at::Tensor> all;
    for (const ParallelParameter& p : rank.trainer.model().parameters())
      all[p.name] = rank.trainer.model().full_tensor(p.name).clone();
    if (world->rank() == 0) saved = std::move(all);
  });
  for (const char* dtype : {"bfloat16", "float32"})
    run_ranks(1, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout("ddp", 1, dtype), world);
      rank.trainer.load(run);
      for (const ParallelParameter& p : rank.trainer.model().parameters()) {
        CAPTURE(p.name);
        CHECK((p.local.scalar_type() == at::kBFloat16) ==
              (dtype == std::string("bfloat16") && !is_factor(p.name)));
        CHECK(p.local.to(at::kFloat).equal(saved.at(p.name).to(at::kFloat)));
      }
      rank.step();
      rank.trainer.save((folder.path / dtype).string());
    });
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout("ddp", 1, "bfloat16"), world);
    try {
      rank.trainer.load((folder.path / "float32").string());
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::checkpoint_mismatch);
      CHECK(error.key() == "lora.base_dtype");
      CHECK(error.helps().at(0) == "set lora.base_dtype = \"float32\"");
    }
  });
}

}  // namespace adapters_test
