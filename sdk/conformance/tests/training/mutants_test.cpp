// A right strategy with one fault each: the kit catches it, and its line names it.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/plugin_main.h"
#include "meshwright/sharded_strategy.h"
#include "sdk/base/conformance.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

extern "C" void meshwright_check_training(const meshwright_strategy* about, void* context,
                                          void (*fail)(void*, const char*),
                                          void (*note)(void*, const char*));

namespace mutants_test {

using namespace meshwright;
using at::Tensor;

namespace {

using Model = std::unique_ptr<ParallelModel>;
using Job = ParallelizeRequest;

// Everything as the model within does it.
class Wrapped : public ParallelModel {
 public:
  Wrapped(Model inner, const Job& job) : inner_(std::move(inner)), world_(job.world) {
    set_context_parallel(inner_->context_parallel());
  }
  void begin_step() override { inner_->begin_step(); }
  void begin_micro_batch(GradientSync sync) override { inner_->begin_micro_batch(sync); }
  void end_step() override { inner_->end_step(); }
  const std::vector<ParallelParameter>& parameters() const override { return inner_->parameters(); }
  const std::vector<FlatParameterGroup>& update_groups() const override {
    return inner_->update_groups();
  }
  void after_optimizer_step() override { inner_->after_optimizer_step(); }
  double clip_grad_norm(double max_norm, double scale) override {
    return inner_->clip_grad_norm(max_norm, scale);
  }
  Tensor full_tensor(std::string_view name) override { return inner_->full_tensor(name); }
  void summon_full_parameters(const std::function<void()>& body) override {
    inner_->summon_full_parameters(body);
  }
  std::shared_ptr<Group> data_group() override { return inner_->data_group(); }
  std::shared_ptr<TensorParallel> tensor_parallel() const override {
    return inner_->tensor_parallel();
  }
  std::vector<std::string> unit_names() const override { return inner_->unit_names(); }
  void hold_units(const std::vector<std::string>& units, bool held) override {
    inner_->hold_units(units, held);
  }
  void reduce_units(const std::vector<std::string>& units) override { inner_->reduce_units(units); }
  bool reduces_every_micro_batch() const override { return inner_->reduces_every_micro_batch(); }

 protected:
  void scale_gradients(double by) const {
    c10::NoGradGuard no_grad;
    for (const FlatParameterGroup& group : inner_->update_groups()) Tensor(group.grads).mul_(by);
  }
  std::vector<Tensor> copies(bool of_gradients) const {
    std::vector<Tensor> out;
    for (const FlatParameterGroup& group : inner_->update_groups())
      out.push_back((of_gradients ? group.grads : group.values).clone());
    return out;
  }
  void put_values(const std::vector<Tensor>& values) const {
    c10::NoGradGuard no_grad;
    for (size_t i = 0; i < values.size(); ++i)
      Tensor(inner_->update_groups()[i].values).copy_(values[i]);
  }
  Model inner_;
  std::shared_ptr<World> world_;
};

// Its parameters are told otherwise than they are.
class Retold : public Wrapped {
 public:
  using Change = std::function<void(std::vector<ParallelParameter>&, const World&)>;
  Retold(Model inner, const Job& job, Change change)
      : Wrapped(std::move(inner), job), change_(std::move(change)) {
    retell();
  }
  void end_step() override {
    Wrapped::end_step();
    retell();
  }
  const std::vector<ParallelParameter>& parameters() const override { return told_; }

 private:
  void retell() {
    told_ = inner_->parameters();
    change_(told_, *world_);
  }
  Change change_;
  std::vector<ParallelParameter> told_;
};

ParallelParameter& find(std::vector<ParallelParameter>& list, const std::string& name) {
  return *std::ranges::find_if(list, [&](const auto& p) { return p.name == name; });
}
const std::string kUp0 = "layers.0.mlp.up_proj.weight", kIn0 = "layers.0.self_attn.in.weight",
                  kIn1 = "layers.1.self_attn.in.weight", kHead = "lm_head.weight";

// ---- gradients

struct Summed : Wrapped {  // never divided by the ranks
  using Wrapped::Wrapped;
  void end_step() override {
    Wrapped::end_step();
    scale_gradients(static_cast<double>(data_group()->size()));
  }
};
struct AveragedTwice : Wrapped {
  using Wrapped::Wrapped;
  void end_step() override {
    Wrapped::end_step();
    scale_gradients(1.0 / static_cast<double>(data_group()->size()));
  }
};
struct LastMicroBatch : Wrapped {  // forgets what has added up
  using Wrapped::Wrapped;
  void begin_micro_batch(GradientSync sync) override {
    if (sync == GradientSync::reduce) inner_->begin_step();
    Wrapped::begin_micro_batch(sync);
  }
};
struct StepsAddUp : Wrapped {  // gradients are not cleared between steps
  using Wrapped::Wrapped;
  void end_step() override {
    Wrapped::end_step();
    c10::NoGradGuard no_grad;
    const std::vector<Tensor> now = copies(/*of_gradients=*/true);
    for (size_t i = 0; i < before.size(); ++i)
      Tensor(inner_->update_groups()[i].grads).add_(before[i]);
    before = now;
  }
  std::vector<Tensor> before;
};
struct LosesOne : Wrapped {  // the gradient of one parameter
  using Wrapped::Wrapped;
  void end_step() override {
    Wrapped::end_step();
    for (const ParallelParameter& p : inner_->parameters())
      if (p.name == kUp0) Tensor(p.grad).zero_();
  }
};
struct NeverRecovers : Wrapped {  // a step that was cut short goes on
  using Wrapped::Wrapped;
  void begin_step() override {
    if (!std::exchange(under_way, true)) Wrapped::begin_step();
  }
  void end_step() override {
    Wrapped::end_step();
    under_way = false;
  }
  bool under_way = false;
};
struct NeverClips : Wrapped {
  using Wrapped::Wrapped;
  double clip_grad_norm(double, double scale) override { return Wrapped::clip_grad_norm(0, scale); }
};
struct NeverScales : Wrapped {
  using Wrapped::Wrapped;
  double clip_grad_norm(double max_norm, double) override {
    return Wrapped::clip_grad_norm(max_norm, 1);
  }
};
struct OwnNorm : Wrapped {  // the norm of this rank's part
  using Wrapped::Wrapped;
  double clip_grad_norm(double max_norm, double scale) override {
    Wrapped::clip_grad_norm(max_norm, scale);
    double squares = 0;
    for (const Tensor& part : copies(/*of_gradients=*/true))
      squares += part.square().sum().item<double>();
    return std::sqrt(squares);
  }
};

// ---- summon_full_parameters

struct SummonSkipped : Wrapped {
  using Wrapped::Wrapped;
  void summon_full_parameters(const std::function<void()>&) override {}
};
struct SummonsShards : Wrapped {
  using Wrapped::Wrapped;
  void summon_full_parameters(const std::function<void()>& body) override { body(); }
};
struct SummonsTwice : Wrapped {
  using Wrapped::Wrapped;
  void summon_full_parameters(const std::function<void()>& body) override {
    Wrapped::summon_full_parameters([&] { body(), body(); });
  }
};
struct SummonSwallows : Wrapped {
  using Wrapped::Wrapped;
  void summon_full_parameters(const std::function<void()>& body) override {
    try {
      Wrapped::summon_full_parameters(body);
    } catch (...) {
    }
  }
};
struct SummonForgets : Wrapped {  // the parts that come back are those of the beginning
  SummonForgets(Model inner, const Job& job) : Wrapped(std::move(inner), job) {
    first = copies(/*of_gradients=*/false);
  }
  void summon_full_parameters(const std::function<void()>& body) override {
    struct Restore {
      SummonForgets& model;
      ~Restore() { model.put_values(model.first); }
    } restore{*this};
    Wrapped::summon_full_parameters(body);
  }
  std::vector<Tensor> first;
};

// ---- parameters, groups, state

struct GroupLacking : Wrapped {  // the optimizer does not hear of the last one
  using Wrapped::Wrapped;
  const std::vector<FlatParameterGroup>& update_groups() const override {
    fewer = inner_->update_groups();
    fewer.pop_back();
    return fewer;
  }
  mutable std::vector<FlatParameterGroup> fewer;
};
struct GroupCopied : Wrapped {  // the optimizer writes copies
  using Wrapped::Wrapped;
  const std::vector<FlatParameterGroup>& update_groups() const override {
    if (copied.empty())
      for (const FlatParameterGroup& group : inner_->update_groups())
        copied.push_back({group.values.clone(), group.grads});
    for (size_t i = 0; i < copied.size(); ++i) copied[i].grads = inner_->update_groups()[i].grads;
    return copied;
  }
  mutable std::vector<FlatParameterGroup> copied;
};
struct GradientsShort : Wrapped {
  using Wrapped::Wrapped;
  const std::vector<FlatParameterGroup>& update_groups() const override {
    cut = inner_->update_groups();
    for (FlatParameterGroup& group : cut)
      if (group.grads.defined()) group.grads = group.grads.flatten().narrow(0, 0, 1);
    return cut;
  }
  mutable std::vector<FlatParameterGroup> cut;
};
struct Undoes : Wrapped {  // what the optimizer wrote is overwritten
  Undoes(Model inner, const Job& job) : Wrapped(std::move(inner), job) {
    first = copies(/*of_gradients=*/false);
  }
  void after_optimizer_step() override {
    put_values(first);
    Wrapped::after_optimizer_step();
  }
  std::vector<Tensor> first;
};
struct LoadForgotten : Wrapped {  // only what its own steps made stays
  LoadForgotten(Model inner, const Job& job) : Wrapped(std::move(inner), job) {
    kept = copies(/*of_gradients=*/false);
  }
  void end_step() override {
    Wrapped::end_step();
    stepped = true;
  }
  void after_optimizer_step() override {
    if (std::exchange(stepped, false))
      kept = copies(/*of_gradients=*/false);
    else
      put_values(kept);
    Wrapped::after_optimizer_step();
  }
  bool stepped = false;
  std::vector<Tensor> kept;
};
struct ReplicasDrift : Wrapped {  // by less than anybody would see in a loss
  using Wrapped::Wrapped;
  void after_optimizer_step() override {
    c10::NoGradGuard no_grad;
    if (world_->rank() == world_->size() - 1)
      for (const FlatParameterGroup& group : inner_->update_groups())
        Tensor(group.values).mul_(1 + 1e-6);
    Wrapped::after_optimizer_step();
  }
};
struct FullStale : Wrapped {  // full_tensor of the beginning
  using Wrapped::Wrapped;
  Tensor full_tensor(std::string_view name) override {
    Tensor& kept = first[std::string(name)];
    if (!kept.defined()) kept = Wrapped::full_tensor(name).clone();
    return kept;
  }
  std::map<std::string, Tensor> first;
};
struct FullOfZeros : Wrapped {  // beside this rank's part
  using Wrapped::Wrapped;
  Tensor full_tensor(std::string_view name) override {
    Tensor out = at::zeros_like(Wrapped::full_tensor(name));
    for (const ParallelParameter& p : inner_->parameters())
      if (p.name == name && !p.region.offsets.empty() && p.local.numel() > 0)
        out.narrow(0, p.region.offsets[0], p.region.sizes[0]).copy_(p.local);
    return out;
  }
};
struct DataAlone : Wrapped {
  using Wrapped::Wrapped;
  std::shared_ptr<Group> data_group() override { return world_->group("own", {world_->rank()}); }
};

// ---- wire

struct GathersTwice : Wrapped {  // each gather of a step is sent once more
  GathersTwice(Model inner, const Job& job) : Wrapped(std::move(inner), job) {
    if (job.mesh.device_mesh && world_->size() > 1)
      group = DeviceMesh(*job.mesh.device_mesh, world_).group(job.mesh.fsdp_axes[0]);
  }
  void end_step() override {
    Wrapped::end_step();
    if (!group || group->size() == 1) return;
    Tensor part = inner_->update_groups()[0].values.detach().clone(),
           whole = part.repeat({group->size()});
    group->all_gather(part, whole).wait();
  }
  std::shared_ptr<Group> group;
};

// What makes the mutant of a strategy that is right.
struct Mutation {
  std::function<Model(Model, Job&)> wrap = {};
  std::function<Model(Job&)> make = {};
  std::function<void(ShardingPolicy&)> policy = {};  // of what runs, not of what is planned
  std::function<void(Footprint&)> footprint = {};
};
Mutation mutation;

class Mutant final : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    return plan_sharded_mesh(request);
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    return fully_sharded_plan(request, {});
  }
  Footprint footprint(const ShardingRequest& request) const override {
    Footprint out = Strategy::footprint(request);
    if (mutation.footprint) mutation.footprint(out);
    return out;
  }
  Model parallelize(Job& job) override {
    if (mutation.make) return mutation.make(job);
    const LiveShardingRequest live(job);
    ShardingPolicy policy;
    if (mutation.policy) mutation.policy(policy);
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
  if (job.config.shared.sizes.dp_replicate == 1)
    return execute_plan(job, fully_sharded_plan(request));
  ShardGroups groups = shard_groups(job);
  groups.replicate = nullptr;
  return shard_model(job.model, bind_units(*job.model, job.outline, plan_units(request.outline)),
                     {.precision = {.mp = job.config.shared.mp}}, groups, job.world);
}
Model ranks_apart(Job& job) {
  ReplicatedPolicy policy;
  policy.mp = job.config.shared.mp;
  return replicate_model(job.model, policy, job.world->group("apart", {job.world->rank()}),
                         job.world);
}

struct Case {
  const char* name;
  const char* says;  // in one of the kit's lines
  Mutation mutation;
};

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
      {"begin_step does not recover", "step 2: the gradient of ", wrapped<NeverRecovers>()},
      {"max_norm is ignored", "step 4: the gradient of ", wrapped<NeverClips>()},
      {"scale is ignored", "step 2: the gradient of ", wrapped<NeverScales>()},
      {"the norm is of one rank", "2 ranks: rank 0: the gradient norm of step 1 is ",
       wrapped<OwnNorm>()},
      {"summon skips its body", "summon_full_parameters ran its body 0 times, not once",
       wrapped<SummonSkipped>()},
      {"summon leaves the shards", "within summon_full_parameters embed_tokens.weight is not whole",
       wrapped<SummonsShards>()},
      {"summon runs its body twice", "ran its body 2 times, not once", wrapped<SummonsTwice>()},
      {"summon swallows exceptions", "summon_full_parameters keeps what its body throws",
       wrapped<SummonSwallows>()},
      {"summon loses the state", "after summon_full_parameters the local of embed_tokens.weight is",
       wrapped<SummonForgets>()},
      {"local is detached", "layers.0.mlp.up_proj.weight: its local [7, 10] is no view of",
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
      {"a region is out of its shape", "reaches out of its shape [30, 10]",
       retold([](List& list, const World&) { find(list, kIn0).region.offsets[0] += 29; })},
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
      {"a region is larger than its local", "has the shape [30, 10], its region",
       retold([](List& list, const World&) { --find(list, kIn0).region.sizes[0]; })},
      {"an update group is missing", "is no view of an update group's values",
       wrapped<GroupLacking>()},
      {"update groups are copies", "is no view of an update group's values",
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
      {"the plan says half of the bytes",
       "its footprint says",
       {.footprint =
            [](Footprint& plan) {
              for (WireRow& row : plan.wire) row.bytes /= 2;
            }}},
  };
}

std::string found() {
  static const meshwright_strategy about =
      describe<Mutant>({.name = "mutant", .summary = "For tests"});
  std::string lines;
  meshwright_check_training(
      &about, &lines,
      [](void* to, const char* text) {
        *static_cast<std::string*>(to) += std::string(text) + "\n";
      },
      [](void* to, const char* text) {
        *static_cast<std::string*>(to) += std::string("note: ") + text + "\n";
      });
  return lines;
}

}  // namespace

TEST_CASE("what the mutants are made of is right") {
  mutation = {};
  CHECK(found() ==
        "note: trained on 1, 2, 3 ranks as a plain loop; with cp_size = 2 by all_gather, ring, "
        "ulysses, ring on 4 ranks; with dp_replicate_size = 2 on 4 ranks; with pp_size = 2 on "
        "2, 4 ranks; with tp_size = 2 on 2, 4 ranks\n");
  mutation = wrapped<Wrapped>();
  CHECK(found().starts_with("note: "));
}

TEST_CASE("every mutant of a right strategy is caught and named") {
  CHECK(cases().size() >= 30);
  for (const Case& c : cases()) {
    const std::string name = c.name;
    CAPTURE(name);
    mutation = c.mutation;
    const std::string lines = found();
    INFO(lines);
    CHECK(lines.find(c.says) != std::string::npos);
  }
  mutation = {};
}

}  // namespace mutants_test
