// Running models with one fault each in what lies beside data parallelism: tensor parallelism,
// stages of a pipeline, state that is kept, and what a save asks.
#pragma once

#include "meshwright/parallel/tensor_parallel.h"
#include "mutants.h"
#include "sdk/base/shared_schemas.h"

namespace mutants_test {

// ---- tensor parallelism

struct HidesCuts : Wrapped {  // of what tensor parallelism cut nobody hears
  using Wrapped::Wrapped;
  std::shared_ptr<TensorParallel> tensor_parallel() const override { return nullptr; }
};
// Does something where there are ranks of tp, and is right elsewhere.
struct UnderTp : Wrapped {
  UnderTp(Model inner, const Job& job)
      : Wrapped(std::move(inner), job), under_tp(job.config.shared().sizes.tp > 1) {
    if (under_tp) group = DeviceMesh(*job.mesh.device_mesh, world_).group("tp");
  }
  bool under_tp;
  std::shared_ptr<Group> group;
};
struct TpSummed : UnderTp {  // gradients add up over tp, too
  using UnderTp::UnderTp;
  void end_step() override {
    Wrapped::end_step();
    if (under_tp) scale_gradients(2);
  }
};
struct TpNorm : UnderTp {  // of this rank's columns
  using UnderTp::UnderTp;
  double clip_grad_norm(double max_norm, double scale) override {
    const double whole = Wrapped::clip_grad_norm(max_norm, scale);
    if (!under_tp) return whole;
    double squares = 0;
    for (const Tensor& part : copies(/*of_gradients=*/true))
      squares += part.square().sum().item<double>();
    return std::sqrt(squares);
  }
};
struct TpSendsTwice : UnderTp {
  using UnderTp::UnderTp;
  void end_step() override {
    Wrapped::end_step();
    if (!under_tp) return;
    Tensor more = at::zeros({8});
    group->all_reduce(more, ReduceOp::sum).wait();
  }
};

// ---- stages

struct HoldsNothing : Wrapped {
  using Wrapped::Wrapped;
  void hold_units(const std::vector<std::string>&, bool) override {}
};
struct ReducesNothing : Wrapped {
  using Wrapped::Wrapped;
  void reduce_units(const std::vector<std::string>&) override {}
};
struct UnitLacking : Wrapped {
  using Wrapped::Wrapped;
  std::vector<std::string> unit_names() const override {
    std::vector<std::string> out = Wrapped::unit_names();
    out.erase(out.begin());
    return out;
  }
};
struct SaysEach : Wrapped {  // that each backward's gradients are reduced by themselves
  using Wrapped::Wrapped;
  bool reduces_every_micro_batch() const override { return true; }
};
struct StagesAveraged : Wrapped {  // as if ranks of pp had samples of their own
  StagesAveraged(Model inner, const Job& job)
      : Wrapped(std::move(inner), job), stages(job.config.shared().sizes.pp) {}
  void end_step() override {
    Wrapped::end_step();
    if (stages > 1) scale_gradients(1.0 / static_cast<double>(stages));
  }
  int64_t stages;
};

// ---- state, and what a save asks

// Keeps the sum of what the parameters were, which is right.
struct Keeps : Wrapped {
  Keeps(Model inner, const Job& job) : Wrapped(std::move(inner), job) {
    for (const Tensor& values : copies(/*of_gradients=*/false))
      sums.push_back(at::zeros_like(values));
  }
  bool values_written(const ValuesWritten& written) override {
    c10::NoGradGuard no_grad;
    if (written.by == ValuesWritten::By::optimizer)
      for (size_t i = 0; i < sums.size(); ++i) sums[i].add_(inner().update_groups()[i].values);
    return Wrapped::values_written(written);
  }
  std::vector<StateTensor> state_tensors() const override {
    return state_beside(*this, "sum", sums);
  }
  std::vector<Tensor> sums;
};
struct StateForgotten : Keeps {  // begins anew after a checkpoint was read
  using Keeps::Keeps;
  bool values_written(const ValuesWritten& written) override {
    if (written.by == ValuesWritten::By::checkpoint)
      for (const Tensor& sum : sums) Tensor(sum).zero_();
    return Keeps::values_written(written);
  }
};
struct StateOfOneRank : Keeps {  // the others' parts are not told
  using Keeps::Keeps;
  std::vector<StateTensor> state_tensors() const override {
    std::vector<StateTensor> out = Keeps::state_tensors();
    if (world_->rank() > 0)
      for (StateTensor& kept : out) kept.local = Tensor();
    return out;
  }
};
struct StateDrifts : Keeps {  // differs between ranks that hold the same
  using Keeps::Keeps;
  bool values_written(const ValuesWritten& written) override {
    const bool wrote = Keeps::values_written(written);
    for (const Tensor& sum : sums) Tensor(sum).add_(1e-6 * static_cast<double>(world_->rank()));
    return wrote;
  }
};
// Its state is told otherwise than it is.
struct StateRetold : Keeps {
  using Change = std::function<void(std::vector<StateTensor>&)>;
  StateRetold(Model inner, const Job& job, Change how)
      : Keeps(std::move(inner), job), change(std::move(how)) {}
  std::vector<StateTensor> state_tensors() const override {
    std::vector<StateTensor> out = Keeps::state_tensors();
    change(out);
    return out;
  }
  Change change;
};
struct SavesOther : Wrapped {  // what a save asks for changes the values
  using Wrapped::Wrapped;
  bool before_save(SaveReason reason, int64_t steps) override {
    c10::NoGradGuard no_grad;
    for (const FlatParameterGroup& group : inner().update_groups()) Tensor(group.values).mul_(1.01);
    return Wrapped::before_save(reason, steps), true;
  }
};
struct KnowsAllReasons : Wrapped {  // of a save, or so it thinks
  using Wrapped::Wrapped;
  bool before_save(SaveReason reason, int64_t steps) override {
    if (reason > SaveReason::end) throw Error(ErrorCode::internal, "there is no such reason");
    return Wrapped::before_save(reason, steps);
  }
};
struct IndependentOfNobody : Wrapped {  // along an axis that has one rank
  using Wrapped::Wrapped;
  std::string independent_axis() const override { return "dp_replicate"; }
};
struct FillingUndone : Wrapped {  // what was read from a folder of weights is overwritten
  using Wrapped::Wrapped;
  bool values_written(const ValuesWritten& written) override {
    c10::NoGradGuard no_grad;
    if (written.by == ValuesWritten::By::weights)
      for (const FlatParameterGroup& group : inner().update_groups()) Tensor(group.values).zero_();
    return Wrapped::values_written(written);
  }
};

}  // namespace mutants_test
