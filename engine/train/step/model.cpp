#include "engine/train/step/model.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/util/env.h>

#include <algorithm>
#include <set>

#include "engine/job/adapters.h"
#include "engine/launch/device/device.h"
#include "engine/models/decoder_family.h"
#include "engine/models/running/causal_lm.h"
#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/plugin_guard.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/text.h"

namespace meshwright::train {

namespace {

// Throws Error(bad_module) naming the first parameter in which they differ.
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

}  // namespace

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

std::string set_float32_products(const Options& run, const Options& dist, c10::Device device) {
  const bool tf32 = run.get_string("float32_matmul_precision") == "high";
  if (!device.is_cuda()) {
    // Where the file says "cpu", it was told already.
    if (!tf32 || dist.get_string("device") == "cpu") return {};
    return "run.float32_matmul_precision = \"high\" has no effect: the ranks compute on the CPU";
  }
  // Not setFloat32MatmulPrecision(): in LibTorch 2.11 that lets oneDNN compute in TF32, too.
  at::globalContext().setAllowTF32CuBLAS(tf32);
  // LibTorch's own way to ask for TF32, which some container images set.
  constexpr const char* kOverride = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE";
  if (tf32 || c10::utils::check_env(kOverride) != true) return {};
  return std::string("run.float32_matmul_precision = \"highest\" comes before ") + kOverride +
         ", which asks for TF32";
}

namespace {

constexpr const char* kKey = "model.float8_linear";

bool lies_in_a_layer(const ModelOutline& outline, const std::string& name) {
  return std::ranges::any_of(outline.modules, [&](const ModuleOutline& m) {
    return m.kind == ModuleKind::layer && text::lies_in(name, m.name);
  });
}

// Of an adapter: those are small, and what they add is too.
bool is_factor(const ModelOutline& outline, const std::string& name) {
  const ModuleOutline* outer = outline.find_module(module_of(name));
  return outer != nullptr && outer->kind == ModuleKind::linear;
}

// LibTorch says itself what its products need, when it is asked for one.
void try_product(c10::Device device) {
  c10::NoGradGuard no_grad;
  Linear linear =
      make_linear(16, 16, /*bias=*/false, at::TensorOptions().dtype(at::kBFloat16).device(device));
  linear->weight.fill_(1);
  linear->float8 = true;
  try {
    linear(at::ones({16, 16}, linear->weight.options()));
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::device_unavailable,
                std::string(kKey) + ": " + device.str() +
                    " has no products of 8-bit floats: " + error.what_without_backtrace())
        .key(kKey)
        .help("set model.float8_linear = false")
        .help("use a device of capability 8.9 or above (H100, L4, RTX 4090)");
  }
}

}  // namespace

void multiply_in_float8(torch::nn::Module& model, const ModelOutline& outline, c10::Device device) {
  int64_t found = 0;
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    auto* linear = dynamic_cast<LinearImpl*>(item.value().get());
    if (linear == nullptr || !lies_in_a_layer(outline, item.key()) ||
        is_factor(outline, item.key()))
      continue;
    linear->float8 = true;
    if (linear->weight.size(0) % 16 == 0 && linear->weight.size(1) % 16 == 0) ++found;
  }
  if (found == 0 && outline.stages <= 1)
    throw Error(ErrorCode::model_does_not_fit,
                std::string(kKey) + ": " + outline.architecture +
                    " has no Linear in a layer whose sizes are multiples of 16")
        .key(kKey)
        .help("set model.float8_linear = false")
        .help("use meshwright::Linear in layers of a torch::nn::ModuleList");
  try_product(device);
}

AutocastScope::AutocastScope(std::optional<c10::ScalarType> dtype, c10::DeviceType device)
    : on_(dtype.has_value()), device_(device) {
  if (!on_) return;
  enabled_ = at::autocast::is_autocast_enabled(device_);
  dtype_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, *dtype);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!on_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_);
  at::autocast::set_autocast_dtype(device_, dtype_);
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
