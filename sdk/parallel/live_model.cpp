// Between plans and live models: the outline of a module, and the units of an outline over the
// module.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/module.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/collectives.h"
#include "meshwright/parallel/sharded_units.h"

namespace meshwright {

at::Tensor to_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  if (!tensor.device().is_cuda())
    throw Error(ErrorCode::device_unavailable,
                "to_cpu() takes tensors of a CPU or a CUDA device, and this one is on " +
                    tensor.device().str())
        .help("give it a tensor that has values on one of them");
  return tensor.cpu();
}

at::Tensor to_cpu(ParallelModel& model, const ParallelParameter& parameter) {
  return to_cpu(model.full_tensor(parameter.name));
}

ModelOutline outline_of(torch::nn::Module& model) {
  ModelOutline outline;
  HookHost* root = HookHost::of(model);
  outline.architecture = root ? root->hooked_class_name() : model.name();
  outline.inner_prefix = "";
  std::set<std::string, std::less<>> lists;
  for (auto& item : model.named_modules()) {
    torch::nn::Module& module = *item.value();
    ModuleKind kind = ModuleKind::other;
    const bool list = module.as<torch::nn::ModuleListImpl>() != nullptr ||
                      module.as<torch::nn::ModuleDictImpl>() != nullptr;
    if (list || module.as<torch::nn::SequentialImpl>()) kind = ModuleKind::list;
    if (module.as<torch::nn::LinearImpl>()) kind = ModuleKind::linear;
    if (module.as<torch::nn::EmbeddingImpl>()) kind = ModuleKind::embedding;
    HookHost* host = HookHost::of(module);
    std::string class_name = host ? host->hooked_class_name() : module.name();
    if (list) lists.insert(item.key());
    if (kind == ModuleKind::other && lists.contains(module_of(item.key())))
      kind = ModuleKind::layer;
    // RMSNorm, LayerNorm, torch::nn::BatchNorm2dImpl, MyNorm: known by their names.
    if (kind == ModuleKind::other && class_name.find("Norm") != std::string::npos)
      kind = ModuleKind::norm;
    outline.modules.push_back({item.key(), kind, class_name});
  }
  // Known where every layer has one core.
  std::set<std::string, std::less<>> attending;
  const auto layers = std::count_if(outline.modules.begin(), outline.modules.end(),
                                    [](const auto& m) { return m.kind == ModuleKind::layer; });
  const auto cores = find_attention_cores(model);
  bool windows = false;
  for (const auto& [name, core] : cores) {
    for (const ModuleOutline& module : outline.modules)
      if (module.kind == ModuleKind::layer && name.starts_with(module.name + "."))
        attending.insert(module.name);
    outline.windows.push_back(core->options().window);
    windows = windows || core->options().window > 0;
  }
  if (!windows || static_cast<std::ptrdiff_t>(cores.size()) != layers ||
      static_cast<std::ptrdiff_t>(attending.size()) != layers)
    outline.windows.clear();
  // Experts are cut apart from the rest: the plan must know them.
  std::set<std::string, std::less<>> experts;
  for (const auto& [name, block] : find_moe_blocks(model))
    experts.insert(name.empty() ? "experts" : name + ".experts");
  for (ModuleOutline& module : outline.modules)
    if (module.kind == ModuleKind::other && experts.contains(module.name))
      module.kind = ModuleKind::experts;
  std::map<const void*, std::string> seen;
  auto kind_of = [&](std::string_view parameter) {
    const ModuleOutline* owner = outline.find_module(module_of(parameter));
    return owner == nullptr ? ModuleKind::other : owner->kind;
  };
  for (auto& item : model.named_parameters()) {
    const auto [first, fresh] = seen.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!fresh) {
      // A head with the embedding's weight.
      if (kind_of(first->second) == ModuleKind::embedding &&
          kind_of(item.key()) == ModuleKind::linear && module_of(module_of(item.key())).empty())
        outline.tied_embeddings = true;
      continue;
    }
    ParameterOutline parameter{item.key(), item.value().sizes().vec(), DType::float32};
    parameter.trainable = item.value().requires_grad();
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

std::vector<UnitSpec> bind_units(torch::nn::Module& model, const ModelOutline& outline,
                                 const std::vector<PlannedUnit>& units) {
  std::map<std::string, at::Tensor, std::less<>> parameters;
  std::map<std::string, torch::nn::Module*, std::less<>> modules{{"", &model}};
  for (const auto& item : model.named_parameters()) parameters.emplace(item.key(), item.value());
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    modules.emplace(item.key(), item.value().get());
  auto find = [](const auto& all, const char* what, const std::string& name) {
    auto found = all.find(name);
    if (found == all.end())
      throw Error(ErrorCode::bad_module, std::string("the model has no ") + what + " " + name +
                                             ", which its outline lists")
          .help("make the outline from the model itself (outline_of), or give both the same names");
    return found->second;
  };
  std::vector<UnitSpec> out;
  for (const PlannedUnit& unit : units) {
    UnitSpec& spec = out.emplace_back();
    spec.name = unit.name;
    spec.module = find(modules, "module", unit.module);
    spec.reshard_after_forward = unit.reshard_after_forward;
    spec.module_list = unit.module_list;
    spec.mp = unit.mp;
    spec.layout = unit.layout;
    spec.first_stage = unit.stage >= 0 && !unit.last_stage;
    spec.last_stage = unit.last_stage;
    spec.once_a_step = unit.once_a_step;
    for (size_t p : unit.parameters) {
      const std::string& name = outline.parameters[p].name;
      spec.parameters.emplace_back(name, find(parameters, "parameter", name));
    }
  }
  return out;
}

}  // namespace meshwright
