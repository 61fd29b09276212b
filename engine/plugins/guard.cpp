#include "engine/plugins/guard.h"

#include <dlfcn.h>
#include <link.h>

#include <utility>

#include "meshwright/parallel/parallel.h"

namespace meshwright::loader {

std::string text_of(const LoadedPlugin& plugin) {
  return plugin.name + " " + plugin.version + " (" + plugin.path.string() + ")";
}

void know_code(const std::filesystem::path& file, const detail::PluginCode* plugin) {
  std::pair<const std::string, const detail::PluginCode*> search(file.string(), plugin);
  ::dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* given) {
        const auto& [name, code] = *static_cast<decltype(search)*>(given);
        if (name != library->dlpi_name) return 0;
        for (int i = 0; i < library->dlpi_phnum; ++i)
          if (const ElfW(Phdr)& part = library->dlpi_phdr[i];
              part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0) {
            const uintptr_t begin = library->dlpi_addr + part.p_vaddr;
            // Addresses of the dynamic linker are numbers. NOLINTBEGIN(performance-no-int-to-ptr)
            detail::plugin_has_code(code, reinterpret_cast<const void*>(begin),
                                    reinterpret_cast<const void*>(begin + part.p_memsz));
            // NOLINTEND(performance-no-int-to-ptr)
          }
        return 1;
      },
      &search);
}

void load_runtime_half(const std::filesystem::path& file, const detail::PluginCode* plugin) {
  if (file.empty() || ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr) return;
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr)
    know_code(file, plugin);
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
