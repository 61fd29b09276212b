#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <set>

#include "engine/plan/plan.h"
#include "meshwright/module.h"
#include "meshwright/trainer.h"

namespace meshwright {

Job::Job() { load(); }
Job::Job(Job&&) noexcept = default;
Job& Job::operator=(Job&&) noexcept = default;
Job::~Job() = default;

Job Job::from_file(const std::string& path, const std::vector<std::string>& overrides) {
  Job job;
  job.path_ = path;
  job.overrides_ = overrides;
  job.load();
  return job;
}

Job Job::from_text(const std::string& toml, const std::vector<std::string>& overrides) {
  Job job;
  job.text_ = toml;
  job.overrides_ = overrides;
  job.load();
  return job;
}

Job& Job::set(const std::string& key, const std::string& value) {
  overrides_.push_back(key + "=" + value);
  try {
    load();
  } catch (...) {
    overrides_.pop_back();
    throw;
  }
  return *this;
}

void Job::load() {
  config::LoadOptions options;
  options.file = path_;
  options.sets = overrides_;
  Diagnostics diagnostics;
  std::optional<plan::Job> loaded = path_.empty() ? plan::load_job(config::Source::parse(text_, options, diagnostics), diagnostics)
                                                  : plan::load_job(options, diagnostics);
  diagnostics.throw_if_any();
  impl_ = std::make_unique<plan::Job>(std::move(*loaded));
  notices_ = diagnostics.notices();
  notices_.insert(notices_.end(), diagnostics.warnings().begin(), diagnostics.warnings().end());
}

const Options& Job::table(const std::string& name) const { return impl_->config.table(name); }
const std::vector<std::string>& Job::notices() const { return notices_; }

ModelOutline outline_of(torch::nn::Module& model) {
  ModelOutline outline;
  HookHost* root = HookHost::of(model);
  outline.architecture = root ? root->hooked_class_name() : model.name();
  outline.inner_prefix = "";
  for (auto& item : model.named_modules()) {
    torch::nn::Module& module = *item.value();
    ModuleKind kind = ModuleKind::other;
    if (module.as<torch::nn::ModuleListImpl>() || module.as<torch::nn::SequentialImpl>()) kind = ModuleKind::list;
    if (module.as<torch::nn::LinearImpl>()) kind = ModuleKind::linear;
    if (module.as<torch::nn::EmbeddingImpl>()) kind = ModuleKind::embedding;
    HookHost* host = HookHost::of(module);
    outline.modules.push_back({item.key(), kind, host ? host->hooked_class_name() : module.name()});
  }
  std::set<const void*> seen;
  for (auto& item : model.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    ParameterOutline parameter{item.key(), item.value().sizes().vec(), DType::float32};
    switch (item.value().scalar_type()) {
      case at::kBFloat16:
        parameter.dtype = DType::bfloat16;
        break;
      case at::kHalf:
        parameter.dtype = DType::float16;
        break;
      case at::kDouble:
        parameter.dtype = DType::float64;
        break;
      default:
        break;
    }
    outline.parameters.push_back(std::move(parameter));
  }
  return outline;
}

}  // namespace meshwright
