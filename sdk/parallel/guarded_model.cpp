#include <c10/util/Exception.h>

#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/base/plugin_guard.h"

namespace meshwright::detail {

namespace {

class GuardedModel final : public PluginObject<ParallelModel>, public PipelineUnits {
  template <class Method, class... Given>
  decltype(auto) call(const char* method_name, Method method, Given&&... given) const {
    return PluginObject::call(method_name, [&](ParallelModel& model) -> decltype(auto) {
      try {
        return std::invoke(method, model, std::forward<Given>(given)...);
      } catch (const c10::DistError& error) {  // of a process group of the plugin's own
        throw Error(ErrorCode::collective_failed, error.what_without_backtrace())
            .note(fault_context(plugin(), method_name));
      }
    });
  }

 public:
  GuardedModel(const PluginCode* plugin, std::unique_ptr<ParallelModel> model)
      : PluginObject(plugin, std::move(model), "the destructor of its model") {
    set_context_parallel(inner().context_parallel());
  }
  void begin_step() override { call("begin_step", &ParallelModel::begin_step); }
  void begin_micro_batch(GradientSync sync) override {
    call("begin_micro_batch", &ParallelModel::begin_micro_batch, sync);
  }
  void end_step() override { call("end_step", &ParallelModel::end_step); }
  void end_step_later() override { call("end_step", &ParallelModel::end_step_later); }
  const std::vector<ParallelParameter>& parameters() const override {
    return call("parameters", &ParallelModel::parameters);
  }
  const std::vector<FlatParameterGroup>& update_groups() const override {
    return call("update_groups", &ParallelModel::update_groups);
  }
  void after_optimizer_step() override {
    call("after_optimizer_step", &ParallelModel::after_optimizer_step);
  }
  bool values_written(const ValuesWritten& written) override {
    return call("values_written", &ParallelModel::values_written, written);
  }
  bool before_save(SaveReason reason, int64_t steps) override {
    return call("before_save", &ParallelModel::before_save, reason, steps);
  }
  std::vector<StateTensor> state_tensors() const override {
    return call("state_tensors", &ParallelModel::state_tensors);
  }
  std::string independent_axis() const override {
    return call("independent_axis", &ParallelModel::independent_axis);
  }
  double clip_grad_norm(double max_norm, double scale) override {
    return call("clip_grad_norm", &ParallelModel::clip_grad_norm, max_norm, scale);
  }
  double clip_grad_norm_later(double max_norm, double scale, double& left) override {
    return call("clip_grad_norm", &ParallelModel::clip_grad_norm_later, max_norm, scale, left);
  }
  at::Tensor full_tensor(std::string_view name) override {
    return call("full_tensor", &ParallelModel::full_tensor, name);
  }
  // What `body` throws is not the plugin's, whatever it is.
  void summon_full_parameters(const std::function<void()>& body) override {
    std::exception_ptr ours;
    auto watched = [&] {
      PluginCall engine(nullptr, nullptr);
      try {
        body();
      } catch (...) {
        ours = std::current_exception();
        throw;
      }
    };
    try {
      call("summon_full_parameters", &ParallelModel::summon_full_parameters, watched);
    } catch (...) {
      if (ours) std::rethrow_exception(ours);
      throw;
    }
    if (ours) std::rethrow_exception(ours);
  }
  std::shared_ptr<Group> data_group() override {
    return call("data_group", &ParallelModel::data_group);
  }
  std::shared_ptr<TensorParallel> tensor_parallel() const override {
    return call("tensor_parallel", &ParallelModel::tensor_parallel);
  }
  PipelineUnits* pipeline_units() override {
    units_ = call("pipeline_units", &ParallelModel::pipeline_units);
    return units_ != nullptr ? this : nullptr;
  }
  std::vector<std::string> unit_names() const override {
    return call("unit_names", [&](ParallelModel&) { return units_->unit_names(); });
  }
  void hold_units(const std::vector<std::string>& units, bool held) override {
    call("hold_units", [&](ParallelModel&) { units_->hold_units(units, held); });
  }
  void reduce_units(const std::vector<std::string>& units) override {
    call("reduce_units", [&](ParallelModel&) { units_->reduce_units(units); });
  }
  bool reduces_every_micro_batch() const override {
    return call("reduces_every_micro_batch",
                [&](ParallelModel&) { return units_->reduces_every_micro_batch(); });
  }

 private:
  PipelineUnits* units_ = nullptr;  // the inner model's
};

}  // namespace

std::unique_ptr<ParallelModel> guarded_model(const PluginCode* plugin,
                                             std::unique_ptr<ParallelModel> inner) {
  if (inner == nullptr) return nullptr;
  return std::make_unique<GuardedModel>(plugin, std::move(inner));
}

}  // namespace meshwright::detail
