#include "engine/plugins/guarded_family.h"

#include <cmath>

#include "engine/plugins/guard.h"
#include "meshwright/model/running_model.h"
#include "sdk/base/check_outline.h"
#include "sdk/base/plain_text.h"

namespace meshwright::loader {

namespace {

class GuardedFamily final : public ModelFamily {
  template <class Body>
  decltype(auto) run(const char* doing, Body&& body) const {
    try {
      return guarded(plugin_, doing, body);
    } catch (Error& error) {
      if (error.code() == ErrorCode::plugin_foreign_exception) throw;
      throw error.note(fault_context(plugin_, doing));
    }
  }

  Error nonconforming(const char* doing, std::string what) const {
    return Error(ErrorCode::plugin_nonconforming, std::move(what))
        .note(fault_context(plugin_, doing));
  }

 public:
  GuardedFamily(const LoadedPlugin& plugin, std::shared_ptr<ModelFamily> inner)
      : plugin_(plugin.code), runtime_half_(plugin.runtime_half), inner_(std::move(inner)) {}
  GuardedFamily(const GuardedFamily&) = delete;
  GuardedFamily& operator=(const GuardedFamily&) = delete;
  ~GuardedFamily() override {
    detail::PluginCall call(plugin_, "the destructor of its model family");
    inner_.reset();
  }
  void validate(const ModelRequest& request, Diagnostics& diagnostics) const override {
    run("validate, checking the model's options", [&] { inner_->validate(request, diagnostics); });
  }
  void check_runs(const ModelRequest& request, Diagnostics& diagnostics) const override {
    run("check_runs", [&] { inner_->check_runs(request, diagnostics); });
  }
  ModelOutline outline(const ModelRequest& request) const override {
    ModelOutline out =
        run("outline, describing the model", [&] { return inner_->outline(request); });
    if (const std::vector<std::string> wrong = problems_of(out); !wrong.empty())
      throw nonconforming(
          "outline, describing the model",
          "outline() describes no model: " + wrong.front() +
              (wrong.size() == 1 ? "" : ", and " + std::to_string(wrong.size() - 1) + " more"))
          .help("`meshwright plugins check` on the plugin tells all of it");
    return out;
  }
  InitialValue initial_value(const ModelRequest& request, const ModelOutline& outline,
                             const ParameterOutline& parameter) const override {
    const InitialValue out =
        run("initial_value", [&] { return inner_->initial_value(request, outline, parameter); });
    const bool spread = out.kind != InitialValue::Kind::constant;
    if (out.kind > InitialValue::Kind::uniform || !std::isfinite(out.value) ||
        (spread && out.value < 0))
      throw nonconforming("initial_value", "initial_value() of " + parameter.name + " is " +
                                               text::format("%f", out.value) +
                                               (spread && out.value < 0 ? ", below 0" : ""));
    if (out.zero_row &&
        (parameter.shape.empty() || *out.zero_row < 0 || *out.zero_row >= parameter.shape.front()))
      throw nonconforming("initial_value", "initial_value() of " + parameter.name +
                                               ": there is no row " +
                                               std::to_string(*out.zero_row));
    return out;
  }
  std::unique_ptr<RunningModel> make(const ModelRequest& request) const override {
    return run("make, making the model", [&] {
      load_runtime_half(runtime_half_, plugin_);
      return inner_->make(request);
    });
  }
  void* extension(uint32_t id) override {
    return run("extension", [&] { return inner_->extension(id); });
  }

 private:
  const detail::PluginCode* plugin_;
  std::filesystem::path runtime_half_;
  std::shared_ptr<ModelFamily> inner_;
};

}  // namespace

std::shared_ptr<ModelFamily> guarded_family(const LoadedPlugin& plugin,
                                            std::shared_ptr<ModelFamily> inner) {
  return std::make_shared<GuardedFamily>(plugin, std::move(inner));
}

}  // namespace meshwright::loader
