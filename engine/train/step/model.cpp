#include "engine/train/step/model.h"

#include <torch/nn/module.h>

#include <set>

#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "engine/launch/device/device.h"
#include "engine/models/decoder_family.h"
#include "engine/models/running/causal_lm.h"
#include "meshwright/trainer.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

void check_outline(const torch::nn::Module& module, const ModelOutline& outline) {
  auto differ = [&](const std::string& what) {
    return Error(ErrorCode::bad_module,
                 "the module of " + outline.architecture + " is not what its outline says: " + what)
        .help(
            "give outline() the parameters of the module, tied ones once, in the order of "
            "named_parameters()");
  };
  std::set<const void*> seen;
  size_t next = 0;
  for (const auto& item : module.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    const std::string shape = report::shape_text(item.value().sizes().vec());
    if (next == outline.parameters.size())
      throw differ("it has the parameter " + item.key() + " " + shape + " beyond the " +
                   std::to_string(next) + " of the outline");
    const ParameterOutline& p = outline.parameters[next++];
    if (p.name != item.key() || p.shape != item.value().sizes().vec())
      throw differ("parameter " + std::to_string(next) + " is " + item.key() + " " + shape +
                   ", in the outline " + p.name + " " + report::shape_text(p.shape));
  }
  if (next < outline.parameters.size())
    throw differ("it has no parameter " + outline.parameters[next].name);
}

InitialValue Model::initial_value(const ParameterOutline& parameter) const {
  return outline.find_parameter(parameter.name) == nullptr && low_rank_factor(parameter.name)
             ? plan::initial_adapter(parameter, gaussian_adapters)
             : outline.initial_value(parameter.name);
}

Model make_model(const Job& job) {
  outlines::HubFamily::made_by(&modules::make_hub_model);
  std::optional<plan::JobModel> named = plan::model_of(job.impl());
  if (!named)
    throw Error(ErrorCode::missing_key, "the job names no model")
        .key("model.config")
        .help("set model.config, model.pretrained or model.plugin");
  Model out{.source = std::move(*named), .outline = {}, .running = nullptr};
  out.outline = out.source.outline(job.impl().config);
  out.running = out.source.family->make(out.source.request);
  out.gaussian_adapters = job.table("lora").get_string("init") == "gaussian";
  if (out.source.plugin != nullptr) {
    const std::string who = "the model family of " + out.source.plugin->name;
    if (out.running == nullptr)
      throw Error(ErrorCode::plugin_nonconforming, "make() of " + who + " returned nothing");
    out.running = detail::guarded_running(out.source.plugin->code, std::move(out.running),
                                          out.outline.vocab_size);
    if (out.running->module() == nullptr)
      throw Error(ErrorCode::plugin_nonconforming, "module() of " + who + " returned nothing");
  }
  check_outline(*out.module(), out.outline);
  return out;
}

void check_generates(const Model& model) {
  if (!model.running->generates())
    throw Error(ErrorCode::usage,
                model.outline.architecture + " makes no text: it does not predict the next token")
        .help("leave out --sample, and let models of another family generate");
}

}  // namespace meshwright::train

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
  if (used_.use_count() > 1)
    throw Error(ErrorCode::conflict,
                key + " cannot be set any more: a Trainer was made of this job, and has read it")
        .key(key)
        .help("set it before the Trainer is made")
        .help("destroy the Trainer first, or make another Job, and a Trainer of that");
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
  std::optional<plan::Job> loaded =
      path_.empty()
          ? plan::load_job(config::Source::parse(text_, options, diagnostics), diagnostics)
          : plan::load_job(options, diagnostics);
  diagnostics.throw_if_any();
  impl_ = std::make_unique<plan::Job>(std::move(*loaded));
  // Not yet of one that is still to get its file.
  if (!path_.empty() || !text_.empty() || !overrides_.empty())
    device::load_early(table("dist_env"));
  notices_ = diagnostics.notices();
  notices_.insert(notices_.end(), diagnostics.warnings().begin(), diagnostics.warnings().end());
}

const Options& Job::table(const std::string& name) const { return impl_->config.table(name); }
const std::vector<std::string>& Job::notices() const { return notices_; }

}  // namespace meshwright
