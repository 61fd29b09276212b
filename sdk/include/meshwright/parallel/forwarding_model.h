// The base of models that add something to another one: everything is the inner model's unless it
// is overridden.
//
//   class Counting final : public meshwright::ForwardingModel {
//    public:
//     using ForwardingModel::ForwardingModel;
//     void end_step() override { inner().end_step(); ++steps_; }
//     ...
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/tensors.h"

namespace meshwright {

class MESHWRIGHT_API ForwardingModel : public ParallelModel, public PipelineUnits {
 public:
  explicit ForwardingModel(std::unique_ptr<ParallelModel> inner);
  ~ForwardingModel() override;
  void begin_step() override;
  void begin_micro_batch(GradientSync sync) override;
  void end_step() override;
  // By end_step() and clip_grad_norm(), which may be overridden.
  void end_step_deferred() override;
  double clip_grad_norm_deferred(double max_norm, double scale, double& left) override;
  const std::vector<ParallelParameter>& parameters() const override;
  const std::vector<FlatParameterGroup>& update_groups() const override;
  void after_optimizer_step() override;
  bool values_written(const ValuesWritten& written) override;
  bool before_save(SaveReason reason, int64_t steps) override;
  std::vector<StateTensor> state_tensors() const override;
  std::string independent_axis() const override;
  double clip_grad_norm(double max_norm, double scale) override;
  at::Tensor full_tensor(std::string_view name) override;
  void summon_full_parameters(const std::function<void()>& body) override;
  std::shared_ptr<Group> data_group() override;
  std::shared_ptr<TensorParallel> tensor_parallel() const override;
  // nullptr: the inner model's extensions are not its own, and would leave out what it overrides.
  void* extension(uint32_t id) override;
  PipelineUnits* pipeline_units() override;
  std::vector<std::string> unit_names() const override;
  void hold_units(const std::vector<std::string>& units, bool held) override;
  void reduce_units(const std::vector<std::string>& units) override;
  bool reduces_every_micro_batch() const override;

 protected:
  ParallelModel& inner() { return *inner_; }
  const ParallelModel& inner() const { return *inner_; }

 private:
  std::unique_ptr<ParallelModel> inner_;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

}  // namespace meshwright
