#include "engine/loader/guard.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <new>

#include "engine/loader/private_copy.h"
#include "meshwright/parallel/parallel.h"
#include "sdk/base/out_of_memory.h"

namespace meshwright::loader {

std::string text_of(const LoadedPlugin& plugin) {
  return plugin.name + " " + plugin.version + " (" + plugin.path.string() + ")";
}

std::string exception_type() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "unknown";
  int status = 0;
  char* text = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
  std::string out = status == 0 && text != nullptr ? text : type->name();
  std::free(text);
  return out;
}

std::string fault_context(const detail::PluginCode* plugin, const char* doing) {
  return std::string("plugin ") + detail::told(plugin) + ", in " + doing + detail::on_this_rank();
}

namespace {

Error fault(const detail::PluginCode* plugin, const char* doing, const std::string& what) {
  return Error(ErrorCode::plugin_foreign_exception, what)
      .note(fault_context(plugin, doing))
      .help("this is a defect of the plugin, which may throw meshwright::Error only");
}

Error fault(const detail::PluginCode* plugin, const char* doing, const std::exception& error) {
  const std::string what = error.what();
  return fault(plugin, doing,
               "an exception of type " + exception_type() +
                   " left the plugin: " + what.substr(0, what.find('\n')));
}

// Of memory, of a device or of a parameter that was freed, whoever met it.
bool has_its_own_words(const std::exception& error) {
  const std::string what = error.what();
  // A device tells of its faults late, in whatever is called next.
  const bool of_device = what.find("CUDA error") != what.npos ||
                         exception_type().find("AcceleratorError") != std::string::npos;
  return of_device || detail::tells_of_memory(what) ||
         what.find("was used outside its unit") != what.npos;
}

}  // namespace

void rethrow_from(const detail::PluginCode* plugin, const char* doing) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    if (has_its_own_words(error)) throw;
    throw fault(plugin, doing, error);
  } catch (...) {
    throw fault(
        plugin, doing,
        "something that is no exception, of type " + exception_type() + ", left the plugin");
  }
}

void load_runtime_half(const std::filesystem::path& file, const detail::PluginCode* plugin) {
  if (file.empty() || ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr) return;
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr)
    keep_private(file, plugin);
}

std::optional<Error> fault_of_thrower(const std::exception& error) {
  const detail::PluginCode* plugin = detail::thrower_of(dynamic_cast<const void*>(&error));
  if (plugin == nullptr || has_its_own_words(error)) return std::nullopt;
  return fault(plugin, "code that it left behind", error);
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
