#include "engine/train/step/model.h"

#include <torch/nn/module.h>

#include <set>

#include "engine/job/adapters.h"
#include "engine/models/hub_family.h"
#include "engine/models/running/causal_lm.h"
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
             : source.family->initial_value(source.request, outline, parameter);
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
