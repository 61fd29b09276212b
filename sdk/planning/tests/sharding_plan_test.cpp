// What a plan knows of frozen parameters, of unit rules and of experts, and that its regions make
// up every parameter once. Long because each case writes its model.
#include "meshwright/sharding_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "footprint_job.h"
#include "meshwright/unit_rules.h"
#include "sdk/base/shared_schemas.h"

namespace sharding_plan_test {

using namespace meshwright;
using namespace meshwright::testing;

namespace {

Names names_of(const ShardingPlan& plan) {
  Names out;
  for (const PlannedUnit& unit : plan.units) out.push_back(unit.name);
  return out;
}

void freeze(ModelOutline& outline, const std::string& prefix) {
  for (ParameterOutline& p : outline.parameters)
    if (p.name.starts_with(prefix)) p.trainable = false;
}

// A tower of two layers before the layers of a Llama.
ModelOutline two_lists() {
  ModelOutline outline = llama_outline({.layers = 2});
  outline.modules.push_back({"vision_tower", ModuleKind::list, "ModuleList"});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "vision_tower." + std::to_string(i);
    outline.modules.push_back({layer, ModuleKind::layer, "Cell"});
    outline.parameters.push_back({layer + ".weight", {10, 4}, DType::float32});
  }
  return outline;
}

}  // namespace

TEST_CASE("the regions of all ranks make up every parameter once, under every layout") {
  struct Row {
    const char* name;
    ParallelSizes sizes;
    int64_t experts;
    bool flat;
  };
  for (const Row& row :
       {Row{"rows", {}, 0, false}, Row{"rows and tp", {.dp = {}, .tp = 2}, 0, false},
        Row{"copies of rows", {.dp = {}, .dp_replicate = 2}, 0, false},
        Row{"experts", {.dp = {}, .ep = 2}, 4, false}, Row{"flat", {}, 0, true},
        Row{"flat and tp", {.dp = {}, .tp = 2}, 0, true}}) {
    CAPTURE(row.name);
    Job job{.outline = llama_outline({.layers = 3, .experts = row.experts, .active = 2}),
            .sizes = row.sizes,
            .world = 8};
    job.plan(row.flat);
    std::vector<std::set<std::pair<std::string, int64_t>>> seen(job.outline.parameters.size());
    for (int64_t rank = 0; rank < 8; ++rank) {
      const ShardingPlan plan = job.sharded(row.flat, rank);
      REQUIRE(plan.parameters.size() == seen.size());
      for (size_t p = 0; p < seen.size(); ++p) {
        const Region& region = plan.parameters[p].region;
        CHECK(fits(region, job.outline.parameters[p].shape));
        if (region.count() > 0) seen[p].emplace(to_text(region), region.count());
      }
    }
    for (size_t p = 0; p < seen.size(); ++p) {
      CAPTURE(job.outline.parameters[p].name);
      int64_t elements = 0;
      for (const auto& [text, count] : seen[p]) elements += count;
      CHECK(elements == element_count(job.outline.parameters[p].shape));
    }
  }
}

TEST_CASE("a plan's costs are those of the request, whatever it was made for") {
  Job job{.outline = llama_outline({.layers = 3}), .sizes = {.dp = {}, .tp = 2}, .world = 8};
  job.work.seq_len = 16;
  job.plan();
  auto cost = [](const ShardingRequest& request, const ShardingPlan& plan) {
    return footprint_of(request, plan).bytes.weights;
  };
  const ShardingPlan plan = fully_sharded_plan(job.request());
  REQUIRE(plan.mesh_layout != nullptr);
  ShardingPlan bare = plan;
  bare.mesh_layout = nullptr;
  CHECK(cost(job.request(), plan) == cost(job.request(), bare));
  // Another rank, another mesh and other styles: as if the plan had kept nothing.
  Job copies{.outline = job.outline, .sizes = {.dp = {}, .dp_replicate = 2}, .world = 8};
  copies.work.seq_len = 16;
  copies.plan();
  const ShardingPlan whole = replicated_plan(job.request());
  ShardingPlan unkept = whole;
  unkept.mesh_layout = nullptr;
  CHECK(cost(copies.request(), whole) == total_elements(job.outline) * 4);
  CHECK(cost(copies.request(), unkept) == cost(copies.request(), whole));
  CHECK(cost(job.request(), whole) < cost(copies.request(), whole));
  Job untouched = job;
  untouched.tp = {};
  CHECK(cost(untouched.request(), whole) == total_elements(job.outline) * 4);
  for (int64_t rank : {1, 7}) CHECK(cost(job.request(rank), plan) == cost(job.request(rank), bare));
}

TEST_CASE("a style that cuts a dimension which its parameter lacks is refused by name") {
  Job job{.outline = llama_outline({}), .sizes = {.dp = {}, .tp = 2}, .world = 2};
  job.plan();
  job.tp = {};
  job.tp.source = "custom";
  job.tp.entries = {{"model.norm", {.kind = TpStyleKind::row}, {"model.norm"}}};
  CHECK(refused(ErrorCode::tp_plan_does_not_fit,
                "the plan (custom) cuts dimension 1 of model.norm.weight, which has only 1",
                [&] { fully_sharded_plan(job.request()); })
            .helps() == Names{"give model.norm no style"});
}

TEST_CASE("a unit whose parameters changed after the plan was made is told, or laid out again") {
  for (bool flat : {false, true}) {
    CAPTURE(flat);
    Job job{.outline = llama_outline({.layers = 2}), .world = 2};
    job.plan(flat);
    const ShardingPlan good = job.sharded(flat);
    auto refuses = [&](const ShardingPlan& plan, const char* why) {
      const Error error =
          refused(ErrorCode::bad_module, why, [&] { footprint_of(job.request(), plan); });
      CHECK(error.message().find("unit \"model.layers.0\"") != std::string::npos);
      CHECK(error.helps().size() == 2);
    };
    ShardingPlan moved = good;
    moved.units[1].parameters.push_back(moved.units[0].parameters.back());
    moved.units[0].parameters.pop_back();
    refuses(moved, "was made for 9 parameters, and the unit has 8");
    ShardingPlan swapped = good;
    std::swap(swapped.units[0].parameters[0], swapped.units[1].parameters[0]);
    refuses(swapped, "was made for model.layers.0.");
    ShardingPlan other = good;
    other.units[0].layout = nullptr;
    Job alone{.outline = job.outline};
    alone.plan(flat);
    other.units[0].layout = alone.sharded(flat).units[0].layout;
    refuses(other, "was made for 1 ranks, and 2 share the unit");
    job.outline.parameters[good.units[0].parameters[0]].trainable = false;
    refuses(good, "was trainable then and is frozen");
    job.outline.parameters[good.units[0].parameters[0]].trainable = true;
    // As the error says.
    for (size_t u : {0, 1}) moved.units[u].layout = nullptr;
    const Footprint cost = footprint_of(job.request(), moved);
    CHECK(cost.bytes.weights == footprint_of(job.request(), good).bytes.weights);
    CHECK(cost.units[0].parameters < cost.units[1].parameters);
  }
}

TEST_CASE("main weights and gradients are counted beside rows") {
  Job job{.outline = llama_outline({}), .world = 4};
  job.work.storage = DType::bfloat16;
  job.mp = {DType::bfloat16, DType::float32, DType::bfloat16, true};
  job.plan();
  const Bytes plain = job.rows().bytes;
  CHECK(plain.weights == 1896 / 4 * 2);
  CHECK(plain.gradients == 1896 / 4 * 2);
  CHECK(plain.optimizer == 2 * (1896 / 4 * 2));
  const PrecisionPolicy wide{.main_weights = DType::float32, .main_gradients = DType::float32};
  const Bytes main = job.rows({.precision = wide}).bytes;
  CHECK(main.weights == plain.weights);
  CHECK(main.gradients == 1896 / 4 * 4);
  CHECK(main.optimizer == 3 * (1896 / 4 * 4));
  // A shard has one dtype, so frozen parameters have main weights too, and nothing else.
  for (ParameterOutline& p : job.outline.parameters) {
    p.dtype = DType::bfloat16;
    p.trainable = false;
  }
  CHECK(job.rows({.precision = wide}).bytes.optimizer == 1896 / 4 * 4);
  job.work.storage = DType::float32;  // float32 weights are their own main weights
  CHECK(job.rows({.precision = wide}).bytes.optimizer == 0);
}

TEST_CASE("what is frozen costs the bytes of its own dtype, under every layout") {
  Job job{.outline = llama_outline({.layers = 4}), .world = 2};
  job.mp = {DType::bfloat16, DType::float32, DType::bfloat16, true};
  int64_t all = 0, frozen = 0;
  for (ParameterOutline& p : job.outline.parameters) {
    all += element_count(p.shape);
    if (p.name.find("norm") != std::string::npos) continue;
    p.trainable = false;
    frozen += element_count(p.shape);
  }
  auto narrow = [&](const auto& cost) {
    for (ParameterOutline& p : job.outline.parameters) p.dtype = DType::float32;
    const Bytes before = cost().bytes;
    for (ParameterOutline& p : job.outline.parameters)
      if (!p.trainable) p.dtype = DType::bfloat16;
    const Bytes after = cost().bytes;
    CHECK(after.gradients == before.gradients);
    CHECK(after.optimizer == before.optimizer);
    return std::pair(before, after);
  };
  job.plan();
  const auto [rows, narrow_rows] = narrow([&] { return job.rows(); });
  CHECK(rows.weights == all / 2 * 4);
  CHECK(rows.weights - narrow_rows.weights == frozen / 2 * 2);
  CHECK(rows.transient == narrow_rows.transient);
  job.plan_flat();
  const auto [flat, narrow_flat] = narrow([&] { return job.flat(); });
  CHECK(flat.weights - narrow_flat.weights == frozen / 2 * 2);
  const auto [level, narrow_level] = narrow([&] { return job.flat({.level = 1}); });
  CHECK(level.weights - narrow_level.weights == frozen * 2);
  CHECK(level.transient - narrow_level.transient == frozen * 2);  // no cast copy
  job.plan_ddp();
  const auto [copies, narrow_copies] = narrow([&] { return job.copies(); });
  CHECK(copies.weights - narrow_copies.weights == frozen * 2);
  CHECK(copies.transient - narrow_copies.transient == frozen * 2);
}

TEST_CASE("what is frozen may be whole on every rank: then nothing gathers it") {
  for (bool flat : {false, true}) {
    CAPTURE(flat);
    Job job{.outline = llama_outline({.layers = 4}), .world = 2};
    int64_t frozen = 0, trained = 0;
    for (ParameterOutline& p : job.outline.parameters) {
      p.trainable = p.name.find("layernorm") != std::string::npos;
      (p.trainable ? trained : frozen) += element_count(p.shape);
    }
    job.plan(flat);
    job.config.job().frozen_whole = true;
    const ShardingPlan plan = job.sharded(flat);
    const Footprint cost = footprint_of(job.request(), plan);
    CHECK(cost.bytes.weights == (frozen + trained / 2) * 4);
    CHECK(cost.bytes.gradients == trained / 2 * 4);
    CHECK(find_row(cost.wire, flat ? "dp" : "dp_shard", "all_gather")->bytes <=
          2 * (trained / 2 * 4));
    const std::string axis = flat ? "dp" : "dp_shard";
    CHECK(placement(cost, "model.embed_tokens.weight").placement == Placement{{axis, "replicate"}});
    CHECK(placement(cost, "model.embed_tokens.weight").local_shape ==
          job.outline.find_parameter("model.embed_tokens.weight")->shape);
  }
}

TEST_CASE("adapters beside a frozen base are a unit that is gathered once a step") {
  for (const bool flat : {false, true}) {
    CAPTURE(flat);
    Job job{.outline = llama_outline({.layers = 3}), .world = 2, .work = {.accumulation = 2}};
    std::vector<ParameterOutline> parameters;
    for (ParameterOutline& p : job.outline.parameters) {
      // A norm that is thawed beside them goes along; the last layer is frozen as a whole.
      p.trainable = p.name == "model.layers.1.input_layernorm.weight";
      const std::string name = p.name;
      parameters.push_back(std::move(p));
      if (!name.ends_with(".q_proj.weight") || name.find(".2.") != std::string::npos) continue;
      const std::string linear = name.substr(0, name.rfind('.'));
      parameters.push_back({linear + ".lora_A.weight", {2, 8}, DType::float32});
      parameters.push_back({linear + ".lora_B.weight", {8, 2}, DType::float32});
    }
    job.outline.parameters = std::move(parameters);
    job.plan(flat);
    const std::string axis = flat ? "dp" : "dp_shard";
    const ShardingPlan plan = job.sharded(flat);
    CHECK(names_of(plan) == Names{"model.layers.0.adapters", "model.layers.0",
                                  "model.layers.1.adapters", "model.layers.1", "model.layers.2",
                                  "root"});
    for (const PlannedUnit& unit : plan.units) {
      CAPTURE(unit.name);
      const bool adapters = unit.name.ends_with(".adapters");
      CHECK(unit.once_a_step == adapters);
      CHECK(unit.reshard_after_forward ==
            (!adapters && !unit.root && (flat || unit.name != "model.layers.2")));
      for (size_t p : unit.parameters) CHECK(job.outline.parameters[p].trainable == adapters);
    }
    CHECK(plan.units[0].module == "model.layers.0");
    CHECK(plan.units[2].parameters.size() == 3);
    // Two micro-batches: the root once each, layers twice each, but the last of rows; and adapters.
    const Footprint cost = footprint_of(job.request(), plan);
    CHECK(find_row(cost.wire, axis, "all_gather")->count == 2 * (1 + 4 + (flat ? 2 : 1)) + 2);
    CHECK(find_row(cost.wire, axis, "reduce_scatter")->count == (flat ? 4 : 2));
    CHECK(cost.units[0].once_a_step);
    CHECK_FALSE(cost.units[1].once_a_step);
    CHECK(cost.units[1].updated == 0);
    // Where the base is whole, adapters are all that is gathered.
    job.config.job().frozen_whole = true;
    const Footprint whole = footprint_of(job.request(), job.sharded(flat));
    CHECK(find_row(whole.wire, axis, "all_gather")->count == 2);
    job.config.job().frozen_whole = false;
    // Adapters of more than the base would fill the memory that sharding saves.
    for (ParameterOutline& p : job.outline.parameters)
      if (p.name.ends_with("lora_A.weight")) p.shape = {1000, 8};
    CHECK(names_of(job.sharded(flat)).size() == 4);
    // Alone nothing is gathered.
    for (ParameterOutline& p : job.outline.parameters)
      if (p.name.ends_with("lora_A.weight")) p.shape = {2, 8};
    job.world = 1;
    job.plan(flat);
    CHECK(names_of(job.sharded(flat)).size() == 4);
  }
}

TEST_CASE("rows have no levels below 3") {
  Job job{.outline = llama_outline({}), .world = 2};
  job.plan();
  for (int level : {-1, 0, 2, 4}) {
    CAPTURE(level);
    auto refusing = [&](const ShardingPolicy& policy) {
      return refused(ErrorCode::out_of_range, "level " + std::to_string(level),
                     [&] { fully_sharded_plan(job.request(), policy); });
    };
    CHECK(refusing({.level = level}).key().empty());
    const Error keyed =
        refusing({.level = level, .options = {{"level", "distributed.mine.level"}}});
    CHECK(keyed.key() == "distributed.mine.level");
    CHECK(keyed.helps()[0] == "set distributed.mine.level = 3");
  }
}

TEST_CASE("an option that is named for a field which the policy does not have is an error") {
  Job job{.outline = llama_outline({}), .world = 2};
  job.config.own() = Options(make_schema("distributed.mine", "mine", {}));
  auto refused_with = [](const std::string& field, const std::string& meant, auto plan) {
    const Error error = refused(ErrorCode::unknown_key,
                                "the policy of the strategy mine has no field \"" + field + "\"",
                                [&] { plan(PolicyOptions{{field, "distributed.mine.units"}}); });
    CHECK(error.key() == "distributed.mine.units");
    CHECK(error.helps()[0] == "did you mean \"" + meant + "\"?");
  };
  job.plan();
  refused_with("prefetch.foward", "prefetch.forward", [&](const PolicyOptions& options) {
    fully_sharded_plan(job.request(), {.options = options});
  });
  job.plan_flat();
  refused_with("flat.unit_class", "flat.unit_classes", [&](const PolicyOptions& options) {
    flat_plan(job.request(), {.options = options});
  });
  job.plan_ddp();
  refused_with("static_grap", "static_graph", [&](const PolicyOptions& options) {
    replicated_plan(job.request(), {.options = options});
  });
  // A field of which no message tells.
  CHECK_NOTHROW(replicated_plan(job.request(), {.options = {{"axis", "distributed.mine.axis"}}}));
}

TEST_CASE("frozen parameters cost no gradients, no optimizer state and no reduction") {
  for (bool flat : {false, true}) {
    CAPTURE(flat);
    Job job{.outline = llama_outline({.layers = 4}), .world = 2};
    job.plan(flat);
    auto cost = [&] { return flat ? job.flat() : job.rows({.reshard_after_forward = true}); };
    const Footprint before = cost();
    freeze(job.outline, "model.layers.1.");
    const Footprint after = cost();
    int64_t frozen = 0;
    for (const ParameterOutline& p : job.outline.parameters)
      if (!p.trainable) frozen += element_count(p.shape);
    const std::string axis = flat ? "dp" : "dp_shard";
    CHECK(after.bytes.weights == before.bytes.weights);
    CHECK(before.bytes.gradients - after.bytes.gradients == frozen / 2 * 4);
    CHECK(before.bytes.optimizer - after.bytes.optimizer == 2 * (frozen / 2 * 4));
    CHECK(find_row(after.wire, axis, "all_gather")->bytes ==
          find_row(before.wire, axis, "all_gather")->bytes);
    CHECK(find_row(before.wire, axis, "reduce_scatter")->bytes -
              find_row(after.wire, axis, "reduce_scatter")->bytes ==
          frozen / 2 * 4);
  }
  Job copies{.outline = llama_outline({.layers = 4}), .world = 2};
  copies.plan_ddp();
  const int64_t before = copies.copies().wire[0].bytes;
  freeze(copies.outline, "model.layers.1.");
  CHECK(copies.copies().wire[0].bytes < before);
}

TEST_CASE("lists that are frozen as a whole go where the policy says, and the plan shows it") {
  Job job{.outline = two_lists(), .world = 2};
  job.plan();
  using Place = FrozenPolicy::Place;
  auto plan_of = [&](Place place) {
    return fully_sharded_plan(
        job.request(),
        {.frozen = {place}, .options = {{"frozen.place", "distributed.mine.frozen"}}});
  };
  const Names all{"model.layers.0", "model.layers.1", "vision_tower.0", "vision_tower.1", "root"},
      rest{"model.layers.0", "model.layers.1", "root"};
  CHECK(names_of(plan_of(Place::per_layer)) == all);
  REQUIRE(plan_of(Place::per_layer).notices.size() == 1);
  CHECK(
      plan_of(Place::per_layer).notices[0] ==
      "distributed.mine.frozen has no effect on the model as it is planned: no list of its layers "
      "is frozen as a whole");
  freeze(job.outline, "vision_tower.");
  CHECK(names_of(plan_of(Place::with_root)) == rest);
  CHECK(plan_of(Place::with_root).notices.empty());
  CHECK(plan_of(Place::with_root).units.back().parameters.size() ==
        plan_of(Place::per_layer).units.back().parameters.size() + 2);
  CHECK(names_of(plan_of(Place::per_layer)) == all);
  CHECK(plan_of(Place::per_layer).notices[0].find("vision_tower.0, vision_tower.1") !=
        std::string::npos);
  const ShardingPlan whole = plan_of(Place::replicated);
  CHECK(names_of(whole) == rest);
  REQUIRE(whole.whole.size() == 2);
  const ParameterPlacement& tower = whole.parameters[whole.whole[0]];
  CHECK(tower.name == "vision_tower.0.weight");
  CHECK(tower.local_shape == std::vector<int64_t>{10, 4});
  CHECK(tower.placement ==
        std::vector<std::pair<std::string, std::string>>{{"dp_shard", "replicate"}});
  // Whole on every rank, they are never gathered.
  auto gathered = [&](Place place) {
    return find_row(footprint_of(job.request(), plan_of(place)).wire, "dp_shard", "all_gather")
        ->bytes;
  };
  CHECK(gathered(Place::with_root) - gathered(Place::replicated) == 2 * 40 / 2 * 4);
}

TEST_CASE(
    "language layers that are all frozen stay units, unless other layers train, which is told") {
  Job job{.outline = two_lists(), .world = 2};
  job.plan();
  auto plan = [&] {
    return fully_sharded_plan(job.request(),
                              {.frozen = {FrozenPolicy::Place::with_root},
                               .options = {{"frozen.place", "distributed.mine.frozen"}}});
  };
  freeze(job.outline, "model.layers.");
  CHECK(names_of(plan()) == Names{"vision_tower.0", "vision_tower.1", "root"});
  REQUIRE(plan().notices.size() == 1);
  CHECK(plan().notices[0] ==
        "the frozen units model.layers.0 to model.layers.1 lie in the root unit, which is whole on "
        "every rank all through a step; distributed.mine.frozen = \"per_layer\" keeps them in "
        "units of their own");
  freeze(job.outline, "vision_tower.");
  CHECK(names_of(plan()) == Names{"model.layers.0", "model.layers.1", "root"});
  CHECK(plan().notices.empty());
  Job alone{.outline = llama_outline({.layers = 2}), .world = 2};
  alone.plan();
  const Footprint before = footprint_of(alone.request(), fully_sharded_plan(alone.request()));
  freeze(alone.outline, "model.layers.");
  const Footprint after = footprint_of(alone.request(), fully_sharded_plan(alone.request()));
  CHECK(after.units.size() == before.units.size());
  CHECK(after.bytes.weights == before.bytes.weights);
  CHECK(after.bytes.transient <= before.bytes.transient);
}

TEST_CASE("a unit rule of the model's class is what the plan shows") {
  Job job{.outline = llama_outline({.layers = 2}), .world = 2};
  job.plan();
  const std::vector<std::string> general = names_of(fully_sharded_plan(job.request()));
  job.outline.architecture = "OfThePlanTest";
  register_unit_rule("OfThePlanTest", dtype_aware_rule({"*.q_proj.weight"}));
  CHECK(general == Names{"model.layers.0", "model.layers.1", "root"});
  job.mp.param = DType::bfloat16;
  job.plan();
  const ShardingPlan cut = fully_sharded_plan(job.request());
  CHECK(names_of(cut) == Names{"model.layers.0.self_attn.q_proj", "model.layers.0",
                               "model.layers.1.self_attn.q_proj", "model.layers.1", "root"});
  REQUIRE(cut.units[0].mp.has_value());
  CHECK(cut.units[0].mp->param == DType::float32);
  CHECK(cut.units[0].reshard_after_forward);
  CHECK_FALSE(cut.units[2].reshard_after_forward);  // as the last of its list
  // Flat buffers do not follow it, and say so.
  Job flat{.outline = job.outline, .world = 2};
  flat.plan_flat();
  const ShardingPlan buffers = flat_plan(flat.request());
  REQUIRE(buffers.notices.size() == 1);
  CHECK(buffers.notices[0].find("OfThePlanTest") != std::string::npos);
}

TEST_CASE("which dtype is the rarer one does not overflow") {
  ModelOutline outline;
  outline.modules = {{"", ModuleKind::other, "Huge"},
                     {"layers", ModuleKind::list, "ModuleList"},
                     {"layers.0", ModuleKind::layer, "Cell"},
                     {"layers.0.a", ModuleKind::linear, "Linear"},
                     {"layers.0.b", ModuleKind::linear, "Linear"}};
  constexpr int64_t kHuge = int64_t{1} << 62;  // twice that is more than 64 bits hold
  outline.parameters = {{"layers.0.a.weight", {4}, DType::float32},
                        {"layers.0.a.bias", {4}, DType::float32},
                        {"layers.0.b.weight", {kHuge}, DType::float32},
                        {"layers.0.b.bias", {kHuge}, DType::float32}};
  std::vector<std::string> names;
  for (const PlannedUnit& unit : dtype_aware_units({outline, {}, {}}, {"*.a.*"}))
    names.push_back(unit.name);
  CHECK(names == Names{"layers.0.a", "layers.0", "root"});
}

TEST_CASE("reshard_after_forward is decided once: by position, never the root, not in a pipeline") {
  Job job{.outline = llama_outline({.layers = 3}), .world = 4};
  auto reshards = [&](std::optional<bool> wanted) {
    std::vector<bool> out;
    for (const PlannedUnit& unit :
         fully_sharded_plan(job.plan().request(), {.reshard_after_forward = wanted}).units)
      out.push_back(unit.reshard_after_forward);
    return out;
  };
  CHECK(reshards({}) == std::vector<bool>{true, true, false, false});
  CHECK(reshards(true) == std::vector<bool>{true, true, true, false});
  CHECK(reshards(false) == std::vector<bool>(4, false));
  job.sizes.pp = 2;
  CHECK(reshards({}) == std::vector<bool>(4, false));
  CHECK(reshards(true) == std::vector<bool>{true, true, true, false});
}

}  // namespace sharding_plan_test
