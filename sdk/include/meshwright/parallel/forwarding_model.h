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

class ForwardingModel : public ParallelModel, public PipelineUnits {
 public:
  explicit ForwardingModel(std::unique_ptr<ParallelModel> inner) : inner_(std::move(inner)) {
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
  bool values_written(const ValuesWritten& written) override {
    return inner_->values_written(written);
  }
  bool before_save(SaveReason reason, int64_t steps) override {
    return inner_->before_save(reason, steps);
  }
  std::vector<StateTensor> state_tensors() const override { return inner_->state_tensors(); }
  std::string independent_axis() const override { return inner_->independent_axis(); }
  double clip_grad_norm(double max_norm, double scale) override {
    return inner_->clip_grad_norm(max_norm, scale);
  }
  at::Tensor full_tensor(std::string_view name) override { return inner_->full_tensor(name); }
  void summon_full_parameters(const std::function<void()>& body) override {
    inner_->summon_full_parameters(body);
  }
  std::shared_ptr<Group> data_group() override { return inner_->data_group(); }
  std::shared_ptr<TensorParallel> tensor_parallel() const override {
    return inner_->tensor_parallel();
  }
  // The inner model's extensions are not its own: what it overrides would be left out.
  void* extension(uint32_t) override { return nullptr; }
  PipelineUnits* pipeline_units() override {
    return inner_->pipeline_units() != nullptr ? this : nullptr;
  }
  std::vector<std::string> unit_names() const override {
    return inner_->pipeline_units()->unit_names();
  }
  void hold_units(const std::vector<std::string>& units, bool held) override {
    inner_->pipeline_units()->hold_units(units, held);
  }
  void reduce_units(const std::vector<std::string>& units) override {
    inner_->pipeline_units()->reduce_units(units);
  }
  bool reduces_every_micro_batch() const override {
    return inner_->pipeline_units()->reduces_every_micro_batch();
  }

 protected:
  ParallelModel& inner() { return *inner_; }
  const ParallelModel& inner() const { return *inner_; }

 private:
  std::unique_ptr<ParallelModel> inner_;
};

}  // namespace meshwright
