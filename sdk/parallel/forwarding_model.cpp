// Everything is the inner model's, behind the SDK's own code: what a later version does here,
// plugins of before do too.
#include "meshwright/parallel/forwarding_model.h"

namespace meshwright {

ForwardingModel::ForwardingModel(std::unique_ptr<ParallelModel> inner) : inner_(std::move(inner)) {
  set_context_parallel(inner_->context_parallel());
}
ForwardingModel::~ForwardingModel() = default;
void ForwardingModel::begin_step() { inner_->begin_step(); }
void ForwardingModel::begin_micro_batch(GradientSync sync) { inner_->begin_micro_batch(sync); }
void ForwardingModel::end_step() { inner_->end_step(); }
void ForwardingModel::end_step_deferred() { ParallelModel::end_step_deferred(); }
double ForwardingModel::clip_grad_norm_deferred(double max_norm, double scale, double& left) {
  return ParallelModel::clip_grad_norm_deferred(max_norm, scale, left);
}
const std::vector<ParallelParameter>& ForwardingModel::parameters() const {
  return inner_->parameters();
}
const std::vector<FlatParameterGroup>& ForwardingModel::update_groups() const {
  return inner_->update_groups();
}
void ForwardingModel::after_optimizer_step() { inner_->after_optimizer_step(); }
bool ForwardingModel::values_written(const ValuesWritten& written) {
  return inner_->values_written(written);
}
bool ForwardingModel::before_save(SaveReason reason, int64_t steps) {
  return inner_->before_save(reason, steps);
}
std::vector<StateTensor> ForwardingModel::state_tensors() const { return inner_->state_tensors(); }
std::string ForwardingModel::independent_axis() const { return inner_->independent_axis(); }
double ForwardingModel::clip_grad_norm(double max_norm, double scale) {
  return inner_->clip_grad_norm(max_norm, scale);
}
at::Tensor ForwardingModel::full_tensor(std::string_view name) { return inner_->full_tensor(name); }
void ForwardingModel::summon_full_parameters(const std::function<void()>& body) {
  inner_->summon_full_parameters(body);
}
std::shared_ptr<Group> ForwardingModel::data_group() { return inner_->data_group(); }
std::shared_ptr<TensorParallel> ForwardingModel::tensor_parallel() const {
  return inner_->tensor_parallel();
}
void* ForwardingModel::extension(uint32_t) { return nullptr; }
PipelineUnits* ForwardingModel::pipeline_units() {
  return inner_->pipeline_units() != nullptr ? this : nullptr;
}
std::vector<std::string> ForwardingModel::unit_names() const {
  return inner_->pipeline_units()->unit_names();
}
void ForwardingModel::hold_units(const std::vector<std::string>& units, bool held) {
  inner_->pipeline_units()->hold_units(units, held);
}
void ForwardingModel::reduce_units(const std::vector<std::string>& units) {
  inner_->pipeline_units()->reduce_units(units);
}
bool ForwardingModel::reduces_every_micro_batch() const {
  return inner_->pipeline_units()->reduces_every_micro_batch();
}

}  // namespace meshwright
