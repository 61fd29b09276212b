// A right strategy with one fault each: the kit catches it, and its line names it.
#include <ATen/ops/zeros_like.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/plugin_main.h"
#include "meshwright/sharded_strategy.h"
#include "mutants.h"
#include "mutants_beside.h"
#include "sdk/base/check_parts.h"
#include "sdk/base/shared_schemas.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace mutants_test {

using namespace meshwright;
using at::Tensor;

namespace {

// What makes the mutant of a strategy that is right.
struct Mutation {
  std::function<Model(Model, Job&)> wrap = {};
  std::function<Model(Job&)> make = {};
  std::function<void(ShardingPolicy&)> policy = {};  // of what runs, not of what is planned
  std::function<void(OwnCost&, const Footprint&)> cost = {};  // of what its plan costs
  bool switched = false;                                      // its option does something
};
Mutation mutation;

class Mutant final : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    return plan_sharded_mesh(request);
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    ShardingPlan out = fully_sharded_plan(request, {});
    if (!mutation.cost) return out;
    const Footprint right = footprint_of(request, out);
    OwnCost& own = out.own_cost.emplace(OwnCost{right.bytes, right.schedule, true});
    own.bytes.activations = 0;
    std::erase_if(own.schedule,
                  [](const Communication& row) { return !row.axis.starts_with("dp"); });
    mutation.cost(own, right);
    return out;
  }
  Model parallelize(Job& job) override {
    if (mutation.make) return mutation.make(job);
    const LiveShardingRequest live(job);
    ShardingPolicy policy;
    if (mutation.policy) mutation.policy(policy);
    if (mutation.switched && job.config.own().get_bool("summed"))
      return std::make_unique<Summed>(execute_plan(job, fully_sharded_plan(live, policy)), job);
    Model model = execute_plan(job, fully_sharded_plan(live, policy));
    return mutation.wrap ? mutation.wrap(std::move(model), job) : std::move(model);
  }
};

template <class Kind>
Mutation wrapped() {
  return {.wrap = [](Model inner, Job& job) -> Model {
    return std::make_unique<Kind>(std::move(inner), job);
  }};
}
Mutation retold(const Retold::Change& change) {
  return {.wrap = [change](Model inner, Job& job) -> Model {
    return std::make_unique<Retold>(std::move(inner), job, change);
  }};
}

// Copies that never meet.
Model copies_apart(Job& job) {
  const LiveShardingRequest live(job);
  const ShardingRequest request = live;
  if (job.config.shared().sizes.dp_replicate == 1)
    return execute_plan(job, fully_sharded_plan(request));
  ShardGroups groups = shard_groups(job);
  groups.replicate = nullptr;
  return shard_model(job.model, bind_units(*job.model, job.outline, plan_units(request.outline)),
                     {.precision = {.mp = job.config.shared().mp}}, groups, job.world);
}
Model ranks_apart(Job& job) {
  ReplicatedPolicy policy;
  policy.mp = job.config.shared().mp;
  return replicate_model(job.model, policy, job.world->group("apart", {job.world->rank()}),
                         job.world);
}

Mutation state_retold(const StateRetold::Change& change) {
  return {.wrap = [change](Model inner, Job& job) -> Model {
    return std::make_unique<StateRetold>(std::move(inner), job, change);
  }};
}
// Ranks of tp that all compute everything.
Model tp_ignored(Job& job) {
  static const TpPlan kNothing;
  ParallelizeRequest without{job.model, job.outline, job.mesh, kNothing, job.config, job.world};
  const LiveShardingRequest live(without);
  return execute_plan(without, fully_sharded_plan(live, {}));
}
// Ranks of tp that hold the gradients of the norms that see this rank's heads for whole ones.
Model norms_alone(Job& job) {
  ModelOutline outline = job.outline;
  for (auto& [pattern, style] : outline.own_tp_plan)
    if (style == "replicated_with_grad_allreduce") style = "replicated";
  ParallelizeRequest without{job.model, outline, job.mesh, job.tp, job.config, job.world};
  const LiveShardingRequest live(without);
  return execute_plan(without, fully_sharded_plan(live, {}));
}
// The ranks of tp keep their parts of what a layer gives, without its bias.
Model sums_nothing(Job& job) {
  const LiveShardingRequest live(job);
  Model model = execute_plan(job, fully_sharded_plan(live, {}));
  for (const auto& item : job.model->named_modules())
    if (item.key() == "layers.0.mlp.down_proj" && job.config.shared().sizes.tp > 1)
      HookHost::of(*item.value())->after_forward.clear();
  return model;
}
// Layers are not computed again, whatever was asked for.
Model recomputes_nothing(Job& job) {
  StrategyConfig config = job.config;
  config.shared().activation_checkpointing = ActivationCheckpointing::none;
  ParallelizeRequest without{job.model, job.outline, job.mesh, job.tp, config, job.world};
  const LiveShardingRequest live(without);
  return execute_plan(without, fully_sharded_plan(live, {}));
}
// In float32, whatever was asked for.
Model rounds_nothing(Job& job) {
  StrategyConfig config = job.config;
  config.shared().mp = MixedPrecision{DType::float32, DType::float32, DType::float32, true};
  ParallelizeRequest without{job.model, job.outline, job.mesh, job.tp, config, job.world};
  const LiveShardingRequest live(without);
  return execute_plan(without, fully_sharded_plan(live, {}));
}

struct Case {
  const char* name;
  const char* says;  // in one of the kit's lines
  Mutation mutation;
};

// The key of [distributed] whose layouts tell that; null: the kit finds it among the first ones, or
// in what several saved.
const char* key_of(std::string_view says) {
  using Told = std::pair<std::string_view, const char*>;
  for (const auto& [words, key] :
       {Told{"on tp, its footprint says", "tp_size"},
        Told{"within summon_full_parameters embed_tokens.weight has the "
             "shape [7, 10]",
             "tp_size"},
        Told{"cut nothing over tp", "tp_size"}, Told{"between the ranks of tp", "tp_size"},
        Told{"tp_size 2: ", "tp_size"}, Told{"pp_size 2: ", "pp_size"},
        Told{"were not reduced after their last backward", "pp_size"},
        Told{"layers recomputed: ", "activation_checkpointing"},
        Told{"bfloat16: ", "mp_policy.param_dtype"}})
    if (says.find(words) != std::string_view::npos) return key;
  return nullptr;
}

std::vector<Case> cases() {
  using List = std::vector<ParallelParameter>;
  return {
      {"gradients are never averaged over dp_replicate",
       "never averaged over dp_replicate",
       {.make = copies_apart}},
      {"gradients are never averaged", "never averaged over other ranks", {.make = ranks_apart}},
      {"gradients are sums", ": it is 2 times that gradient", wrapped<Summed>()},
      {"gradients are averaged twice", ": it is 0.5 times that gradient", wrapped<AveragedTwice>()},
      {"accumulation is lost", "the last micro-batch alone", wrapped<LastMicroBatch>()},
      {"gradients of steps add up", "it holds that of the step before, too", wrapped<StepsAddUp>()},
      {"one gradient is lost", "the gradient of layers.0.mlp.up_proj.weight is 0 at element [",
       wrapped<LosesOne>()},
      {"begin_step does not recover", "it holds that of the step that was cut short",
       wrapped<NeverRecovers>()},
      {"max_norm is ignored", " times that gradient after clip_grad_norm(0.1, 1)",
       wrapped<NeverClips>()},
      {"scale is ignored", ": it is 2 times that gradient after clip_grad_norm(0, 0.5)",
       wrapped<NeverScales>()},
      {"the norm is of one rank", "2 ranks: rank 0: the gradient norm of step 1 is ",
       wrapped<OwnNorm>()},
      {"summon skips its body", "summon_full_parameters ran its body 0 times, not once",
       wrapped<SummonSkipped>()},
      {"summon leaves the shards", "within summon_full_parameters embed_tokens.weight is not whole",
       wrapped<SummonsShards>()},
      {"summon runs its body twice", "ran its body 2 times, not once", wrapped<SummonsTwice>()},
      {"summon loses the state", "after summon_full_parameters the local of embed_tokens.weight is",
       wrapped<SummonForgets>()},
      {"local is detached",
       "trains layers.0.mlp.up_proj.weight, but its part is no view of any of update_groups()",
       retold([](List& list, const World&) {
         find(list, kUp0).local = find(list, kUp0).local.clone();
       })},
      {"grad is a copy of zeros", "but the optimizer uses", retold([](List& list, const World&) {
         find(list, kUp0).grad = at::zeros_like(find(list, kUp0).local);
       })},
      {"grad is undefined", "the gradient of layers.0.mlp.up_proj.weight is undefined",
       retold([](List& list, const World&) { find(list, kUp0).grad = Tensor(); })},
      {"grad is the values", "grad is another's or a copy",
       retold([](List& list, const World&) { find(list, kUp0).grad = find(list, kUp0).local; })},
      {"every rank says it has the first rows", "its region [0:3, 0:10] or its offset",
       retold([](List& list, const World&) { find(list, kUp0).region.offsets[0] = 0; })},
      {"a region is out of its shape",
       "says that layers.0.self_attn.q_proj.weight is [9:19, 0:10] of [10, 10] here",
       retold([](List& list, const World&) { find(list, kIn0).region.offsets[0] += 9; })},
      {"two locals are exchanged", "or its offset in the update group is wrong",
       retold([](List& list, const World&) {
         std::swap(find(list, kIn0).local, find(list, kIn1).local);
         std::swap(find(list, kIn0).grad, find(list, kIn1).grad);
       })},
      {"a parameter is missing", "parameters() lacks lm_head.weight",
       retold([](List& list, const World&) {
         std::erase_if(list, [](const auto& p) { return p.name == kHead; });
       })},
      {"a parameter stands twice", "parameters() lists lm_head.weight twice",
       retold([](List& list, const World&) { list.push_back(find(list, kHead)); })},
      {"a parameter is unknown", "parameters() lists nobody, which the model lacks here",
       retold([](List& list, const World&) {
         list.push_back(find(list, kHead));
         list.back().name = "nobody";
       })},
      {"a global shape is another", "its global_shape is [13, 11], not [13, 10]",
       retold([](List& list, const World&) { find(list, kHead).global_shape = {13, 11}; })},
      {"a region is larger than its local",
       "is [0:9, 0:10] of [10, 10] here, but its part has the shape [10, 10]",
       retold([](List& list, const World&) { --find(list, kIn0).region.sizes[0]; })},
      {"an update group is missing", "but its part is no view of any of update_groups()",
       wrapped<GroupLacking>()},
      {"update groups are copies", "but its part is no view of any of update_groups()",
       wrapped<GroupCopied>()},
      {"update groups have too few gradients", "values and 1 gradients", wrapped<GradientsShort>()},
      {"the optimizer's work is undone", "the loss of step 2 is", wrapped<Undoes>()},
      {"what is loaded does not come back",
       "saved: rank 0: after it was loaded: full_tensor of embed_tokens.weight has ",
       wrapped<LoadForgotten>()},
      {"replicas drift apart", "saves of replicas that differ: rank ", wrapped<ReplicasDrift>()},
      {"full_tensor is stale", "where full_tensor has", wrapped<FullStale>()},
      {"full_tensor has one part",
       "before the first step: full_tensor of layers.0.input_layernorm.weight has 0 at",
       wrapped<FullOfZeros>()},
      {"data_group is one rank", "data_group() has 1 ranks, but 2 have data of their own",
       wrapped<DataAlone>()},
      {"gathers are sent twice", "x all_gather on dp_shard, its footprint says ",
       wrapped<GathersTwice>()},
      {"every micro-batch is reduced",
       "x reduce_scatter on dp_shard, its footprint says",
       {.policy = [](ShardingPolicy& policy) { policy.reduction.every_micro_batch = true; }}},
      {"tensor parallelism is ignored",
       "planned tp_size = 2, but its parallelize() cut nothing over tp",
       {.make = tp_ignored}},
      {"norms that see this rank's heads are not summed over tp",
       "the gradient of layers.0.self_attn.q_norm.weight is ",
       {.make = norms_alone}},
      {"what tensor parallelism cut is not told",
       "within summon_full_parameters embed_tokens.weight has the shape [7, 10], not [13, 10]",
       wrapped<HidesCuts>()},
      {"gradients are summed over tp", "2 ranks, tp_size 2: rank 0: step 1: the gradient of ",
       wrapped<TpSummed>()},
      {"the norm is of one rank of tp",
       "2 ranks, tp_size 2: rank 0: the gradient norm of step 1 is ", wrapped<TpNorm>()},
      {"ranks of tp send more than is planned", "x all_reduce on tp, its footprint says ",
       wrapped<TpSendsTwice>()},
      {"stages do not reduce their units",
       "unit layers.0, layers.1, root were not reduced after their last backward",
       wrapped<ReducesNothing>()},
      {"a unit of a stage is not told of",
       "gradients of unit layers.0 were not reduced after their last backward",
       wrapped<UnitLacking>()},
      {"stages do not hold their units",
       "pp_size 2: rank 0: step 3 sent 33600 bytes in 36 x all_gather on dp_shard, its footprint "
       "says 2800 in 3",
       wrapped<HoldsNothing>()},
      {"stages say that they reduce every micro-batch",
       "pp_size 2: rank 0: step 3 sent 16800 bytes in 18 x reduce_scatter on dp_shard, its "
       "footprint says 2800 in 3",
       wrapped<SaysEach>()},
      {"gradients are averaged over stages", "pp_size 2: rank 0: step 1: the gradient of ",
       wrapped<StagesAveraged>()},
      {"state is lost when it is loaded", "after it was loaded: the state sum of ",
       wrapped<StateForgotten>()},
      {"state is of one rank", "its part is not a contiguous tensor of float32 in the shape of ",
       wrapped<StateOfOneRank>()},
      {"state differs between replicas", "saves of replicas that differ: rank ",
       wrapped<StateDrifts>()},
      {"state stands twice", "keeps the state sum of embed_tokens.weight, twice",
       state_retold([](std::vector<StateTensor>& list) { list.push_back(list.front()); })},
      {"state reaches out of its shape", "is no part of the shape [13, 10]",
       state_retold([](std::vector<StateTensor>& list) { list.front().region.offsets[0] += 13; })},
      {"state is not what its region says",
       "the state sum of embed_tokens.weight, but its part is not a contiguous tensor of float32",
       state_retold([](std::vector<StateTensor>& list) {
         if (list.front().local.defined()) list.front().local = list.front().local.flatten();
       })},
      {"state has a name that files use for something else",
       "keeps the state buffer of embed_tokens.weight, but a state's name is of a-z",
       state_retold([](std::vector<StateTensor>& list) { list.front().state = "buffer"; })},
      {"state is of another dtype than it says", "its part is not a contiguous tensor of bfloat16",
       state_retold([](std::vector<StateTensor>& list) { list.front().dtype = DType::bfloat16; })},
      {"state is each replica's own, without such replicas",
       "says that there are 2 replicas, but no rank holds the state sum of embed_tokens.weight of "
       "replica 1",
       state_retold([](std::vector<StateTensor>& list) { list.front().replica = {0, 2}; })},
      {"a save changes the values", "after step 3 and before_save: full_tensor of ",
       wrapped<SavesOther>()},
      {"a save for a reason of later is refused", "there is no such reason",
       wrapped<KnowsAllReasons>()},
      {"replicas are independent where there are none",
       "independent_axis() is dp_replicate, along which its mesh has no two ranks",
       wrapped<IndependentOfNobody>()},
      {"what was read as weights is overwritten", "before the first step: full_tensor of ",
       wrapped<FillingUndone>()},
      {"layers are not computed again",
       "2 ranks, layers recomputed: rank 0: step 1 ran the MLPs of its layers 6 times, expected 12",
       {.make = recomputes_nothing}},
      {"bfloat16 is ignored", "2 ranks, bfloat16: rank 0: step 3 sent ", {.make = rounds_nothing}},
      {"what LibTorch throws leaves a method",
       "error[E0421]: an exception of type c10::Error left the plugin: torn (plugin mutant, "
       "in end_step, on rank 0)",
       wrapped<Torn>()},
      {"one rank falls over while the other waits",
       "2 ranks: rank 1: error[E0421]: an exception of type std::runtime_error left the plugin: it "
       "fell over (plugin mutant, in begin_step, on rank 1)",
       wrapped<OneFallsOver>()},
      {"a switch of its own sums gradients",
       "2 ranks, summed = true: rank 0: step 1: the gradient of ",
       {.switched = true}},
      {"the plan says three times the weights",
       "bytes of weights, 8444 without padding, its footprint says 25332",
       {.cost = [](OwnCost& own, const Footprint&) { own.bytes.weights *= 3; }}},
      {"the plan says three times the gradients",
       "bytes of gradients, 8444 without padding, its footprint says 25332",
       {.cost = [](OwnCost& own, const Footprint&) { own.bytes.gradients *= 3; }}},
      {"the plan says three times what the optimizer keeps",
       "bytes of the optimizer's state, 8444 without padding, its footprint says 25332",
       {.cost = [](OwnCost& own, const Footprint&) { own.bytes.optimizer *= 3; }}},
      {"the plan says three times what is gathered",
       "bytes of tensors more than it began with, its footprint says 44520 transient and 19840",
       {.cost = [](OwnCost& own, const Footprint&) { own.bytes.transient *= 3; }}},
      {"the plan says three times the activations",
       "bytes of tensors more than it began with, its footprint says 0 transient and 119040 of "
       "activations",
       {.cost =
            [](OwnCost& own, const Footprint& right) {
              own.bytes.activations = 2 * right.bytes.activations;
            }}},
      {"the plan says half of the bytes",
       "13720 bytes in 12 x all_gather on dp_shard, its footprint says 6860 in 12",
       {.cost =
            [](OwnCost& own, const Footprint&) {
              for (Communication& row : own.schedule) row.payload /= 2;
            }}},
  };
}

// Nor are the layouts trained that come before the ones which tell it.
using Settings = std::vector<std::pair<std::string, OptionValue>>;
std::string found(const char* until = nullptr, const Settings& settings = {}) {
  static const std::vector<meshwright_option> options = {
      bool_option("summed", false, "Gradients are sums.")};
  static const meshwright_strategy about =
      describe<Mutant>({.name = "mutant", .summary = "For tests", .options = options});
  return kit_says({.strategy = &about, .settings = settings}, until,
                  until == nullptr ? nullptr : key_of(until));
}

}  // namespace

TEST_CASE("what the mutants are made of is right") {
  // Without a wrapper it is Shards of training_test.cpp.
  mutation = wrapped<Wrapped>();
  CHECK(found() ==
        "note: trained on 1, 2, 3 ranks as a plain loop; with activation_checkpointing = full on 2 "
        "ranks; with cp_size = 2 by all_gather, ring, ulysses, ring on 4 ranks; with "
        "dp_replicate_size = 2 on 4 ranks; with mp_policy.param_dtype = bfloat16 on 2 ranks; with "
        "pp_size = 2 on 2, 4 ranks; with tp_size = 2 on 2, 4 ranks; with 1 value of its own "
        "options\n");
  mutation = wrapped<Keeps>();
  CHECK(found().starts_with("note: "));
}

TEST_CASE("what is set of a strategy's own table holds in every layout") {
  mutation = {.switched = true};
  const std::string lines = found("2 ranks: rank 0: ", {{"summed", true}});
  CHECK(lines.find("2 ranks: rank 0: step 1: the gradient of ") != std::string::npos);
  mutation = {};
}

TEST_CASE("every mutant of a right strategy is caught and named") {
  CHECK(cases().size() >= 60);
  for (const Case& c : cases()) {
    const std::string name = c.name;
    CAPTURE(name);
    mutation = c.mutation;
    const std::string lines = found(c.says);
    INFO(lines);
    CHECK(lines.find(c.says) != std::string::npos);
  }
  mutation = {};
}

TEST_CASE("where a mutant turns wrong is told as `prove` tells it") {
  for (const Case& c : std::vector<Case>{
           {"sums", "in step 1: twice the truth on every rank, and dp_shard has 2 ranks",
            wrapped<Summed>()},
           {"norms",
            "differs between the ranks of tp: a sum over tp is missing; give the module",
            {.make = norms_alone}},
           {"rows",
            "tp_size 2: it turns wrong in the output of layers.0.mlp.down_proj (ranks 0, 1)",
            {.make = sums_nothing}}}) {
    const std::string name = c.name;
    CAPTURE(name);
    mutation = c.mutation;
    const std::string lines = found(c.says);
    INFO(lines);
    CHECK(lines.find(c.says) != std::string::npos);
  }
  mutation = {};
}

}  // namespace mutants_test
