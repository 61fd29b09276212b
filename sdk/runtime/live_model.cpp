// Between plans and live models: the outline of a module, and the units of an outline over the module.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <set>

#include "meshwright/error.h"
#include "meshwright/module.h"
#include "meshwright/sharded_units.h"

namespace meshwright {

ModelOutline outline_of(torch::nn::Module& model) {
  ModelOutline outline;
  HookHost* root = HookHost::of(model);
  outline.architecture = root ? root->hooked_class_name() : model.name();
  outline.inner_prefix = "";
  std::set<std::string, std::less<>> lists;
  for (auto& item : model.named_modules()) {
    torch::nn::Module& module = *item.value();
    ModuleKind kind = ModuleKind::other;
    if (module.as<torch::nn::ModuleListImpl>() || module.as<torch::nn::SequentialImpl>()) kind = ModuleKind::list;
    if (module.as<torch::nn::LinearImpl>()) kind = ModuleKind::linear;
    if (module.as<torch::nn::EmbeddingImpl>()) kind = ModuleKind::embedding;
    HookHost* host = HookHost::of(module);
    std::string class_name = host ? host->hooked_class_name() : module.name();
    if (module.as<torch::nn::ModuleListImpl>()) lists.insert(item.key());
    if (kind == ModuleKind::other && lists.contains(module_of(item.key()))) kind = ModuleKind::layer;
    // RMSNorm, LayerNorm, torch::nn::BatchNorm2dImpl, MyNorm: known by their names.
    if (kind == ModuleKind::other && class_name.find("Norm") != std::string::npos) kind = ModuleKind::norm;
    outline.modules.push_back({item.key(), kind, class_name});
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

std::vector<UnitSpec> unit_specs(torch::nn::Module& model, const ModelOutline& outline, std::optional<bool> reshard_after_forward) {
  std::map<std::string, at::Tensor, std::less<>> parameters;
  for (const auto& item : model.named_parameters()) parameters.emplace(item.key(), item.value());
  std::map<std::string, torch::nn::Module*, std::less<>> modules;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) modules.emplace(item.key(), item.value().get());
  auto lacks = [&](const char* what, const std::string& name) {
    return Error(ErrorCode::bad_module, std::string("the model has no ") + what + " " + name + ", which its outline lists")
        .help("make the outline from the model itself (outline_of), or give both the same names");
  };
  std::vector<UnitSpec> units;
  std::map<std::string, int64_t, std::less<>> lists;
  for (const Unit& planned : plan_units(outline)) {
    UnitSpec unit;
    unit.name = planned.name;
    if (planned.name == "root") {
      unit.module = &model;
      unit.reshard_after_forward = false;
    } else {
      auto module = modules.find(planned.name);
      if (module == modules.end()) throw lacks("module", planned.name);
      unit.module = module->second;
      unit.reshard_after_forward = reshard_after_forward.value_or(!planned.last_of_list);
      unit.list = lists.emplace(module_of(planned.name), static_cast<int64_t>(lists.size())).first->second;
    }
    for (size_t index : planned.parameters) {
      const std::string& name = outline.parameters[index].name;
      auto parameter = parameters.find(name);
      if (parameter == parameters.end()) throw lacks("parameter", name);
      unit.parameters.emplace_back(name, parameter->second);
    }
    units.push_back(std::move(unit));
  }
  return units;
}

}  // namespace meshwright
