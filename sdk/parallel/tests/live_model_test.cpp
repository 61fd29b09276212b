// The way from a live model to a plan and back: outline_of, plan_units, bind_units.
#include "meshwright/error.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/shared_schemas.h"
#include "tiny_model.h"

#include <torch/nn/modules/container/moduledict.h>

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace live_model_test {

using namespace meshwright;

namespace {

std::vector<std::string> names_of(const UnitSpec& unit) {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : unit.parameters) out.push_back(name);
  return out;
}

struct TwoListsImpl : torch::nn::Module {
  TwoListsImpl() {
    register_module("first", first);
    register_module("second", second);
    for (int i = 0; i < 2; ++i) first->push_back(Linear(2, 2));
    for (int i = 0; i < 3; ++i) second->push_back(Linear(2, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
  torch::nn::ModuleList first, second;
};
MESHWRIGHT_MODULE(TwoLists);

// Two towers by name, one of which is a list of layers.
struct NamedTowersImpl : torch::nn::Module {
  NamedTowersImpl() {
    register_module("towers", towers);
    torch::nn::ModuleList layers;
    for (int i = 0; i < 2; ++i) layers->push_back(Linear(2, 2));
    towers->update(std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{
        {"text", layers.ptr()}, {"image", Linear(2, 2).ptr()}});
    head = register_module("head", Linear(2, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
  torch::nn::ModuleDict towers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(NamedTowers);

}  // namespace

TEST_CASE("the outline of a live model names its modules, lists and parameters, tied ones once") {
  tiny::Net net = tiny::make(2, 1, 0, /*tied=*/true);
  ModelOutline outline = outline_of(*net);
  CHECK(outline.architecture == "Net");
  CHECK(outline.find_module("layers")->kind == ModuleKind::list);
  CHECK(outline.find_module("layers.1")->class_name == "Block");
  CHECK(outline.find_module("layers.1")->kind == ModuleKind::layer);
  CHECK(outline.find_module("layers.1.input_layernorm")->kind == ModuleKind::norm);
  CHECK(outline.find_module("layers.1.mlp")->kind == ModuleKind::other);
  CHECK(outline.find_module("embed")->kind == ModuleKind::embedding);
  CHECK(outline.find_module("layers.0.mlp.up")->kind == ModuleKind::linear);
  CHECK(outline.find_parameter("embed.weight")->shape == std::vector<int64_t>{13, 10});
  CHECK(outline.find_parameter("head.weight") == nullptr);
  net->to(at::kBFloat16);
  CHECK(outline_of(*net).find_parameter("norm.weight")->dtype == DType::bfloat16);
}

TEST_CASE("the units of a plan stand over the live model's own modules and parameters") {
  tiny::Net net = tiny::make(3, 1);
  ModelOutline outline = outline_of(*net);
  std::vector<PlannedUnit> planned = plan_units(outline);
  std::vector<UnitSpec> units = bind_units(*net, outline, planned);
  REQUIRE(units.size() == planned.size());
  for (size_t i = 0; i < units.size(); ++i) {
    CAPTURE(units[i].name);
    CHECK(units[i].name == planned[i].name);
    std::vector<std::string> expected;
    for (size_t index : planned[i].parameters) expected.push_back(outline.parameters[index].name);
    CHECK(names_of(units[i]) == expected);
    CHECK(units[i].module_list == (i < 3 ? 0 : -1));
    CHECK(units[i].reshard_after_forward == (i < 2));
    for (const auto& [name, tensor] : units[i].parameters)
      CHECK(tensor.is_same(net->named_parameters()[name]));
  }
  CHECK(units.back().name == "root");
  CHECK(units.back().module == net.get());
  CHECK(units[1].module == net->layers->ptr(1).get());
  for (bool reshard : {false, true})
    for (const UnitSpec& unit : bind_units(*net, outline, plan_units(outline, reshard)))
      CHECK(unit.reshard_after_forward == (reshard && unit.name != "root"));
}

TEST_CASE("each module list is a prefetch list of its own") {
  TwoLists net;
  std::vector<int64_t> lists;
  for (const UnitSpec& unit : bind_units(*net, outline_of(*net), plan_units(outline_of(*net))))
    lists.push_back(unit.module_list);
  CHECK(lists == std::vector<int64_t>{0, 0, 1, 1, 1, -1});
}

TEST_CASE("an outline that does not belong to the model is an error that names what is missing") {
  tiny::Net net = tiny::make(2, 1);
  for (const auto& [modules, what] :
       {std::pair{true, "module layers.7"}, {false, "parameter layers.1.extra"}}) {
    ModelOutline outline = outline_of(*net);
    if (modules)
      outline.modules.push_back({"layers.7", ModuleKind::other, "Block"});
    else
      outline.parameters.push_back({"layers.1.extra", {2, 2}, DType::float32});
    try {
      bind_units(*net, outline, plan_units(outline));
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_module);
      CHECK(error.message().find(what) != std::string::npos);
      CHECK(!error.helps().empty());
    }
  }
}

TEST_CASE("the groups of shards are those of the axes that the plan shards along") {
  run_ranks(4, [](const std::shared_ptr<World>& world) {
    tiny::Net net = tiny::make(1, 1);
    ModelOutline outline = outline_of(*net);
    StrategyConfig config;
    config.shared().mp.param = DType::float32;
    MeshPlan hybrid, none;
    hybrid.device_mesh = Mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
    hybrid.fsdp_axes = {"dp_replicate", "dp_shard"};
    ShardGroups shards = shard_groups({net.ptr(), outline, hybrid, {}, config, world});
    std::string found = shards.replicate_axis + " " + std::to_string(shards.replicate->ranks()[0]) +
                        ", " + shards.shard_axis + " " + std::to_string(shards.shard->ranks()[0]);
    std::string expected = "dp_replicate " + std::to_string(world->rank() % 2) + ", dp_shard " +
                           std::to_string(world->rank() / 2 * 2);
    if (found != expected) throw std::runtime_error(found);
    bool refused = false;
    try {
      shard_groups({net.ptr(), outline, none, {}, config, world});
    } catch (const Error& error) {
      refused = error.code() == ErrorCode::internal;
    }
    if (!refused) throw std::runtime_error("a plan without axes was accepted");
  });
}

TEST_CASE(
    "items of a map of modules are units as those of a list are, and a list among them has units "
    "of its own") {
  NamedTowers net;
  ModelOutline outline = outline_of(*net);
  CHECK(outline.find_module("towers")->kind == ModuleKind::list);
  std::vector<UnitSpec> units = bind_units(*net, outline, plan_units(outline));
  std::vector<std::string> names;
  for (const UnitSpec& unit : units) names.push_back(unit.name);
  CHECK(names ==
        std::vector<std::string>{"towers.image", "towers.text.0", "towers.text.1", "root"});
  CHECK(names_of(units[0]) == std::vector<std::string>{"towers.image.weight", "towers.image.bias"});
  CHECK(names_of(units[3]) == std::vector<std::string>{"head.weight", "head.bias"});
  CHECK(units[0].module_list != units[1].module_list);
  CHECK(units[1].reshard_after_forward);
  CHECK_FALSE(units[2].reshard_after_forward);  // the last of its list
}

}  // namespace live_model_test
