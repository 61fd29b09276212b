#include "engine/loader/guard.h"

#include <dlfcn.h>

#include "engine/loader/private_copy.h"
#include "meshwright/parallel/parallel.h"

namespace meshwright::loader {

std::string text_of(const LoadedPlugin& plugin) {
  return plugin.name + " " + plugin.version + " (" + plugin.path.string() + ")";
}

void load_runtime_half(const std::filesystem::path& file, const detail::PluginCode* plugin) {
  if (file.empty() || ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr) return;
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr)
    keep_private(file, plugin);
}

namespace {

class GuardedStrategy final : public Strategy {
  template <class Body>
  decltype(auto) run(const char* doing, Body&& body) const {
    try {
      return guarded(plugin_, doing, body);
    } catch (Error& error) {
      if (error.code() == ErrorCode::plugin_foreign_exception) throw;
      throw error.note(fault_context(plugin_, doing));
    }
  }

 public:
  GuardedStrategy(const LoadedPlugin& plugin, std::shared_ptr<Strategy> inner)
      : plugin_(plugin.code), runtime_half_(plugin.runtime_half), inner_(std::move(inner)) {}
  GuardedStrategy(const GuardedStrategy&) = delete;
  GuardedStrategy& operator=(const GuardedStrategy&) = delete;
  ~GuardedStrategy() override {
    detail::PluginCall call(plugin_, "its destructor");
    inner_.reset();
  }
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    run("validate, checking its options", [&] { inner_->validate(config, diagnostics); });
  }
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    return run("plan_mesh, planning the mesh", [&] { return inner_->plan_mesh(request); });
  }
  TpPlan translate_tp_plan(const ModelOutline& outline,
                           const TpPlanRequest& request) const override {
    return run("translate_tp_plan, translating the tensor-parallel plan",
               [&] { return inner_->translate_tp_plan(outline, request); });
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    return run("plan_sharding", [&] { return inner_->plan_sharding(request); });
  }
  Footprint footprint(const ShardingRequest& request) const override {
    return run("footprint, computing what it costs", [&] { return inner_->footprint(request); });
  }
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    return run("parallelize, parallelizing the model", [&] {
      load_runtime_half(runtime_half_, plugin_);
      return inner_->parallelize(request);
    });
  }
  void* extension(uint32_t id) override {
    return run("extension", [&] { return inner_->extension(id); });
  }

 private:
  const detail::PluginCode* plugin_;
  std::filesystem::path runtime_half_;
  std::shared_ptr<Strategy> inner_;
};

}  // namespace

std::shared_ptr<Strategy> guarded_strategy(const LoadedPlugin& plugin,
                                           std::shared_ptr<Strategy> inner) {
  return std::make_shared<GuardedStrategy>(plugin, std::move(inner));
}

}  // namespace meshwright::loader
