#include "engine/plugins/verify_library.h"

#include <utility>

#include "meshwright/model/running_model.h"
#include "meshwright/parallel/parallel.h"
#include "sdk/base/checks.h"
#include "sdk/base/plugin_guard.h"

namespace meshwright::loader {

namespace {

using detail::PluginObject;

class GuardedStrategy final : public PluginObject<Strategy> {
 public:
  using PluginObject::PluginObject;
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    call_hook("validate, checking its options", &Strategy::validate, config, diagnostics);
  }
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    return call_hook("plan_mesh, planning the mesh", &Strategy::plan_mesh, request);
  }
  TpPlan translate_tp_plan(const ModelOutline& outline,
                           const TpPlanRequest& request) const override {
    return call_hook("translate_tp_plan, translating the tensor-parallel plan",
                     &Strategy::translate_tp_plan, outline, request);
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    return call_hook("plan_sharding", &Strategy::plan_sharding, request);
  }
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request) override {
    return call_hook("parallelize, parallelizing the model", &Strategy::parallelize, request);
  }
  void* extension(uint32_t id) override { return call_hook("extension", &Strategy::extension, id); }
};

class GuardedFamily final : public PluginObject<ModelFamily> {
 public:
  using PluginObject::PluginObject;
  void validate(const ModelRequest& request, Diagnostics& diagnostics) const override {
    call_hook("validate, checking the model's options", &ModelFamily::validate, request,
              diagnostics);
  }
  void check_runs(const ModelRequest& request, Diagnostics& diagnostics) const override {
    call_hook("check_runs", &ModelFamily::check_runs, request, diagnostics);
  }
  ModelOutline outline(const ModelRequest& request) const override {
    ModelOutline out = call_hook("outline, describing the model", &ModelFamily::outline, request);
    if (const std::vector<std::string> wrong = problems_of(out); !wrong.empty())
      throw nonconforming(
          "outline, describing the model",
          "outline() describes no model: " + wrong.front() +
              (wrong.size() == 1 ? "" : ", and " + std::to_string(wrong.size() - 1) + " more"))
          .help("`meshwright plugins check` on the plugin tells all of it");
    return out;
  }
  std::unique_ptr<RunningModel> make(const ModelRequest& request) const override {
    return call_hook("make, making the model", &ModelFamily::make, request);
  }
  void* extension(uint32_t id) override {
    return call_hook("extension", &ModelFamily::extension, id);
  }
};

// Data. `named`: whether an Error says whose they are; who reads texts has named no plugin.
template <class Interface>
class GuardedData : public PluginObject<Interface> {
 public:
  GuardedData(const detail::PluginCode* plugin, std::shared_ptr<Interface> made,
              const char* destructor, bool named)
      : PluginObject<Interface>(plugin, std::move(made), destructor), named_(named) {}

 protected:
  template <class Method, class... Given>
  decltype(auto) hook(const char* doing, Method method, Given&&... given) const {
    return named_ ? this->call_hook(doing, method, std::forward<Given>(given)...)
                  : this->call(doing, method, std::forward<Given>(given)...);
  }
  bool named() const { return named_; }

 private:
  bool named_;
};

class GuardedSource final : public GuardedData<SampleSource> {
 public:
  using GuardedData::GuardedData;
  int64_t samples() const override { return hook("samples", &SampleSource::samples); }
  void read(int64_t sample, const SampleView& out) const override {
    hook("read", &SampleSource::read, sample, out);
  }
  std::string describe() const override { return hook("describe", &SampleSource::describe); }
  uint64_t fingerprint() const override { return hook("fingerprint", &SampleSource::fingerprint); }
  bool has_documents() const override {
    return hook("has_documents", &SampleSource::has_documents);
  }
  bool has_weights() const override { return hook("has_weights", &SampleSource::has_weights); }
  std::vector<std::string> files() const override { return hook("files", &SampleSource::files); }
  std::vector<std::string> report() const override { return hook("report", &SampleSource::report); }
  void* extension(uint32_t id) override { return hook("extension", &SampleSource::extension, id); }
};

class GuardedKind final : public GuardedData<DatasetKind> {
 public:
  using GuardedData::GuardedData;
  void validate(const DatasetRequest& request, Diagnostics& diagnostics) const override {
    hook("validate, checking its options", &DatasetKind::validate, request, diagnostics);
  }
  void prepare(const DatasetRequest& request) const override {
    hook("prepare", &DatasetKind::prepare, request);
  }
  std::unique_ptr<SampleSource> open(const DatasetRequest& request) const override {
    std::unique_ptr<SampleSource> source =
        hook("open, opening its data set", &DatasetKind::open, request);
    if (!source) return nullptr;
    return std::make_unique<GuardedSource>(plugin(), std::move(source),
                                           "the destructor of its data set", named());
  }
  void* extension(uint32_t id) override { return hook("extension", &DatasetKind::extension, id); }
};

}  // namespace

std::shared_ptr<Strategy> guard(const LoadedPlugin& plugin, std::shared_ptr<Strategy> made) {
  return std::make_shared<GuardedStrategy>(plugin.code, std::move(made), "its destructor");
}

std::shared_ptr<ModelFamily> guard(const LoadedPlugin& plugin, std::shared_ptr<ModelFamily> made) {
  return std::make_shared<GuardedFamily>(plugin.code, std::move(made),
                                         "the destructor of its model family");
}

std::shared_ptr<DatasetKind> guard(const LoadedPlugin& plugin, std::shared_ptr<DatasetKind> made,
                                   bool named) {
  return std::make_shared<GuardedKind>(plugin.code, std::move(made),
                                       "the destructor of its kind of data set", named);
}

}  // namespace meshwright::loader
