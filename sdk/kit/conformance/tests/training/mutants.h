// Running models with one fault each, around one that is right.
#pragma once

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/parallel/forwarding_model.h"
#include "sdk/base/conformance.h"

extern "C" void meshwright_check_training(const meshwright::conformance::Subject* subject,
                                          void* context, void (*fail)(void*, const char*),
                                          void (*note)(void*, const char*));
extern "C" void meshwright_check_training_of(const meshwright::conformance::Subject* subject,
                                             const char* key, void* context,
                                             void (*fail)(void*, const char*));

namespace mutants_test {

using namespace meshwright;
using at::Tensor;

using Model = std::unique_ptr<ParallelModel>;
using Job = ParallelizeRequest;

// What the kit says of a strategy, up to the line that has `until` in it (null: all): then what is
// left is not trained. `key`: of [distributed], whose layouts alone are trained; null: all.
inline std::string kit_says(const conformance::Subject& subject, const char* until = nullptr,
                            const char* key = nullptr) {
  struct Lines {
    std::string text;
    const char* until;
  } lines{{}, until};
  struct Enough {};
  auto fail = [](void* to, const char* text) {
    auto& so_far = *static_cast<Lines*>(to);
    const std::string line = text;
    so_far.text += line + "\n";
    if (so_far.until != nullptr && line.find(so_far.until) != std::string::npos) throw Enough();
  };
  try {
    if (key != nullptr)
      meshwright_check_training_of(&subject, key, &lines, fail);
    else
      meshwright_check_training(&subject, &lines, fail, [](void* to, const char* text) {
        static_cast<Lines*>(to)->text += std::string("note: ") + text + "\n";
      });
  } catch (const Enough&) {
  }
  return lines.text;
}

// Everything as the model within does it.
class Wrapped : public ForwardingModel {
 public:
  Wrapped(Model inner, const Job& job) : ForwardingModel(std::move(inner)), world_(job.world) {}

 protected:
  void scale_gradients(double by) const {
    c10::NoGradGuard no_grad;
    for (const FlatParameterGroup& group : inner().update_groups()) Tensor(group.grads).mul_(by);
  }
  std::vector<Tensor> copies(bool of_gradients) const {
    std::vector<Tensor> out;
    for (const FlatParameterGroup& group : inner().update_groups())
      out.push_back((of_gradients ? group.grads : group.values).clone());
    return out;
  }
  void put_values(const std::vector<Tensor>& values) const {
    c10::NoGradGuard no_grad;
    for (size_t i = 0; i < values.size(); ++i)
      Tensor(inner().update_groups()[i].values).copy_(values[i]);
  }
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
    told_ = inner().parameters();
    change_(told_, *world_);
  }
  Change change_;
  std::vector<ParallelParameter> told_;
};

inline ParallelParameter& find(std::vector<ParallelParameter>& list, const std::string& name) {
  return *std::ranges::find_if(list, [&](const auto& p) { return p.name == name; });
}
inline const std::string kUp0 = "layers.0.mlp.up_proj.weight",
                         kIn0 = "layers.0.self_attn.q_proj.weight",
                         kIn1 = "layers.1.self_attn.q_proj.weight", kHead = "lm_head.weight";

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
    if (sync == GradientSync::reduce) inner().begin_step();
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
      Tensor(inner().update_groups()[i].grads).add_(before[i]);
    before = now;
  }
  std::vector<Tensor> before;
};
struct LosesOne : Wrapped {  // the gradient of one parameter
  using Wrapped::Wrapped;
  void end_step() override {
    Wrapped::end_step();
    for (const ParallelParameter& p : inner().parameters())
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

// ---- exceptions

struct Torn : Wrapped {
  using Wrapped::Wrapped;
  void end_step() override { TORCH_CHECK(false, "torn"); }
};
struct OneFallsOver : Wrapped {
  using Wrapped::Wrapped;
  void begin_step() override {
    if (world_->rank() == 1) throw std::runtime_error("it fell over");
    Wrapped::begin_step();
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
    fewer = inner().update_groups();
    fewer.pop_back();
    return fewer;
  }
  mutable std::vector<FlatParameterGroup> fewer;
};
struct GroupCopied : Wrapped {  // the optimizer writes copies
  using Wrapped::Wrapped;
  const std::vector<FlatParameterGroup>& update_groups() const override {
    if (copied.empty())
      for (const FlatParameterGroup& group : inner().update_groups())
        copied.push_back({group.values.clone(), group.grads});
    for (size_t i = 0; i < copied.size(); ++i) copied[i].grads = inner().update_groups()[i].grads;
    return copied;
  }
  mutable std::vector<FlatParameterGroup> copied;
};
struct GradientsShort : Wrapped {
  using Wrapped::Wrapped;
  const std::vector<FlatParameterGroup>& update_groups() const override {
    cut = inner().update_groups();
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
  void end_step() override {
    Wrapped::end_step();
    stepped = true;
  }
  void after_optimizer_step() override {
    c10::NoGradGuard no_grad;
    if (std::exchange(stepped, false) && world_->rank() == world_->size() - 1)
      for (const FlatParameterGroup& group : inner().update_groups())
        Tensor(group.values).mul_(1 + 1e-6);
    Wrapped::after_optimizer_step();
  }
  bool stepped = false;
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
    for (const ParallelParameter& p : inner().parameters())
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
    Tensor part = inner().update_groups()[0].values.detach().clone(),
           whole = part.repeat({group->size()});
    group->all_gather(part, whole).wait();
  }
  std::shared_ptr<Group> group;
};

}  // namespace mutants_test
