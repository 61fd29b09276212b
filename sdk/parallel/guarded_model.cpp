#include "sdk/base/guarded_model.h"

#include <c10/util/Exception.h>

#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/base/plugin_guard.h"

namespace meshwright::detail {

namespace {

class GuardedModel final : public ParallelModel, public PipelineUnits {
  template <class Body>
  decltype(auto) run(const char* method, Body&& body) const {
    return guarded(plugin_, method, [&]() -> decltype(auto) {
      try {
        return body();
      } catch (const c10::DistError& error) {  // of a process group of the plugin's own
        throw Error(ErrorCode::collective_failed, error.what_without_backtrace())
            .note(fault_context(plugin_, method));
      }
    });
  }

 public:
  GuardedModel(const PluginCode* plugin, std::unique_ptr<ParallelModel> inner)
      : plugin_(plugin), inner_(std::move(inner)) {
    set_context_parallel(inner_->context_parallel());
  }
  GuardedModel(const GuardedModel&) = delete;
  GuardedModel& operator=(const GuardedModel&) = delete;
  ~GuardedModel() override {
    PluginCall call(plugin_, "the destructor of its model");
    inner_.reset();
  }
  void begin_step() override {
    run("begin_step", [&] { inner_->begin_step(); });
  }
  void begin_micro_batch(GradientSync sync) override {
    run("begin_micro_batch", [&] { inner_->begin_micro_batch(sync); });
  }
  void end_step() override {
    run("end_step", [&] { inner_->end_step(); });
  }
  void end_step_later() override {
    run("end_step", [&] { inner_->end_step_later(); });
  }
  const std::vector<ParallelParameter>& parameters() const override {
    return run("parameters", [&]() -> auto& { return inner_->parameters(); });
  }
  const std::vector<FlatParameterGroup>& update_groups() const override {
    return run("update_groups", [&]() -> auto& { return inner_->update_groups(); });
  }
  void after_optimizer_step() override {
    run("after_optimizer_step", [&] { inner_->after_optimizer_step(); });
  }
  bool values_written(const ValuesWritten& written) override {
    return run("values_written", [&] { return inner_->values_written(written); });
  }
  bool before_save(SaveReason reason, int64_t steps) override {
    return run("before_save", [&] { return inner_->before_save(reason, steps); });
  }
  std::vector<StateTensor> state_tensors() const override {
    return run("state_tensors", [&] { return inner_->state_tensors(); });
  }
  std::string independent_axis() const override {
    return run("independent_axis", [&] { return inner_->independent_axis(); });
  }
  double clip_grad_norm(double max_norm, double scale) override {
    return run("clip_grad_norm", [&] { return inner_->clip_grad_norm(max_norm, scale); });
  }
  double clip_grad_norm_later(double max_norm, double scale, double& left) override {
    return run("clip_grad_norm",
               [&] { return inner_->clip_grad_norm_later(max_norm, scale, left); });
  }
  at::Tensor full_tensor(std::string_view name) override {
    return run("full_tensor", [&] { return inner_->full_tensor(name); });
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
      run("summon_full_parameters", [&] { inner_->summon_full_parameters(watched); });
    } catch (...) {
      if (ours) std::rethrow_exception(ours);
      throw;
    }
    if (ours) std::rethrow_exception(ours);
  }
  std::shared_ptr<Group> data_group() override {
    return run("data_group", [&] { return inner_->data_group(); });
  }
  std::shared_ptr<TensorParallel> tensor_parallel() const override {
    return run("tensor_parallel", [&] { return inner_->tensor_parallel(); });
  }
  PipelineUnits* pipeline_units() override {
    units_ = run("pipeline_units", [&] { return inner_->pipeline_units(); });
    return units_ != nullptr ? this : nullptr;
  }
  std::vector<std::string> unit_names() const override {
    return run("unit_names", [&] { return units_->unit_names(); });
  }
  void hold_units(const std::vector<std::string>& units, bool held) override {
    run("hold_units", [&] { units_->hold_units(units, held); });
  }
  void reduce_units(const std::vector<std::string>& units) override {
    run("reduce_units", [&] { units_->reduce_units(units); });
  }
  bool reduces_every_micro_batch() const override {
    return run("reduces_every_micro_batch", [&] { return units_->reduces_every_micro_batch(); });
  }

 private:
  const PluginCode* plugin_;
  std::unique_ptr<ParallelModel> inner_;
  PipelineUnits* units_ = nullptr;  // the inner model's
};

}  // namespace

std::unique_ptr<ParallelModel> guarded_model(const PluginCode* plugin,
                                             std::unique_ptr<ParallelModel> inner) {
  if (inner == nullptr) return nullptr;
  return std::make_unique<GuardedModel>(plugin, std::move(inner));
}

}  // namespace meshwright::detail
