#include "engine/train/step/precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/util/env.h>

#include <algorithm>

#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "sdk/base/text.h"

namespace meshwright::train {

namespace {

constexpr const char* kHighest = "run.float32_matmul_precision = \"highest\"";
constexpr const char* kHigh = "run.float32_matmul_precision = \"high\"";
// LibTorch's own way to ask for TF32, which some container images set.
constexpr const char* kOverride = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE";

}  // namespace

std::string set_float32_products(const Options& run, const Options& dist, c10::Device device) {
  const bool tf32 = run.get_string("float32_matmul_precision") == "high";
  if (!device.is_cuda()) {
    // Where the file says "cpu", it was told already.
    if (!tf32 || dist.get_string("device") == "cpu") return {};
    return std::string(kHigh) + " has no effect: the ranks compute on the CPU";
  }
  // Not setFloat32MatmulPrecision(): in LibTorch 2.11 that lets oneDNN compute in TF32, too.
  at::globalContext().setAllowTF32CuBLAS(tf32);
  if (tf32 || c10::utils::check_env(kOverride) != true) return {};
  return std::string(kHighest) + " comes before " + kOverride + ", which asks for TF32";
}

namespace {

constexpr const char* kKey = "model.float8_linear";

bool lies_in_a_layer(const ModelOutline& outline, const std::string& name) {
  return std::any_of(outline.modules.begin(), outline.modules.end(), [&](const ModuleOutline& m) {
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
    if (linear == nullptr || !lies_in_a_layer(outline, item.key())) continue;
    if (is_factor(outline, item.key())) continue;
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
