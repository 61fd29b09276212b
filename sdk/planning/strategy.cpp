#include "meshwright/strategy.h"

#include "meshwright/parallel/parallel.h"

namespace meshwright {

Strategy::~Strategy() = default;
ParallelModel::~ParallelModel() = default;
PipelineUnits::~PipelineUnits() = default;
void ParallelModel::end_step_later() { end_step(); }
double ParallelModel::clip_grad_norm_later(double max_norm, double scale, double& left) {
  left = 1;
  return clip_grad_norm(max_norm, scale);
}
bool ParallelModel::values_written(const ValuesWritten&) { return false; }
bool ParallelModel::before_save(SaveReason, int64_t) { return false; }
std::vector<StateTensor> ParallelModel::state_tensors() const { return {}; }
std::string ParallelModel::independent_axis() const { return {}; }
std::shared_ptr<TensorParallel> ParallelModel::tensor_parallel() const { return nullptr; }

void Strategy::validate(const StrategyConfig&, Diagnostics&) const {}

TpPlan Strategy::translate_tp_plan(const ModelOutline& outline,
                                   const TpPlanRequest& request) const {
  return select_tp_plan(outline, request);
}

ShardingPlan Strategy::plan_sharding(const ShardingRequest& request) const {
  return replicated_plan(request);
}

void* Strategy::extension(uint32_t) { return nullptr; }

}  // namespace meshwright
