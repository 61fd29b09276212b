// Between plans and live models: the outline of a module, and the units of an outline over the
// module.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <set>

#include "meshwright/error.h"
#include "meshwright/nn/module.h"
#include "meshwright/parallel/sharded_units.h"

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

namespace {

// What units are made of, by name.
class Parts {
 public:
  explicit Parts(torch::nn::Module& model) : model_(model) {
    for (const auto& item : model.named_parameters()) parameters_.emplace(item.key(), item.value());
    for (const auto& item : model.named_modules("", /*include_self=*/false))
      modules_.emplace(item.key(), item.value().get());
  }
  const at::Tensor& parameter(const std::string& name) const {
    auto found = parameters_.find(name);
    if (found == parameters_.end()) throw lacks("parameter", name);
    return found->second;
  }
  UnitSpec root(const std::string& name) const {
    UnitSpec unit;
    unit.name = name;
    unit.module = &model_;
    unit.reshard_after_forward = false;
    return unit;
  }
  UnitSpec item(const std::string& name, bool reshard) {
    auto module = modules_.find(name);
    if (module == modules_.end()) throw lacks("module", name);
    UnitSpec unit;
    unit.name = name;
    unit.module = module->second;
    unit.reshard_after_forward = reshard;
    unit.module_list =
        lists_.emplace(module_of(name), static_cast<int64_t>(lists_.size())).first->second;
    return unit;
  }
  void add(UnitSpec& unit, const ModelOutline& outline, const std::vector<size_t>& indices) const {
    for (size_t index : indices)
      unit.parameters.emplace_back(outline.parameters[index].name,
                                   parameter(outline.parameters[index].name));
  }

 private:
  static Error lacks(const char* what, const std::string& name) {
    return Error(ErrorCode::bad_module,
                 std::string("the model has no ") + what + " " + name + ", which its outline lists")
        .help("make the outline from the model itself (outline_of), or give both the same names");
  }
  torch::nn::Module& model_;
  std::map<std::string, at::Tensor, std::less<>> parameters_;
  std::map<std::string, torch::nn::Module*, std::less<>> modules_;
  std::map<std::string, int64_t, std::less<>> lists_;
};

}  // namespace

std::vector<UnitSpec> unit_specs(torch::nn::Module& model, const ModelOutline& outline,
                                 std::optional<bool> reshard_after_forward) {
  Parts parts(model);
  std::vector<UnitSpec> units;
  for (const Unit& planned : plan_units(outline)) {
    bool root = planned.name == "root";
    units.push_back(root ? parts.root(planned.name)
                         : parts.item(planned.name, reshard_after_forward.value_or(
                                                        !planned.last_of_module_list)));
    parts.add(units.back(), outline, planned.parameters);
  }
  return units;
}

std::vector<UnitSpec> flat_unit_specs(torch::nn::Module& model, const ModelOutline& outline,
                                      const FlatPolicy& policy, bool reshard) {
  Parts parts(model);
  std::vector<int64_t> elements;
  for (const ParameterOutline& parameter : outline.parameters)
    elements.push_back(parts.parameter(parameter.name).numel());
  std::vector<UnitSpec> units;
  bool root = false;
  for (const FlatBuffer& buffer : flat_buffers(outline, elements, policy)) {
    // A unit with the class of the whole model is named after it.
    bool whole = !buffer.unit || outline.find_module(buffer.name) == nullptr;
    units.push_back(whole ? parts.root(buffer.name) : parts.item(buffer.name, reshard));
    units.back().reshard_after_forward = buffer.unit && reshard;
    parts.add(units.back(), outline, buffer.parameters);
    root = root || whole;
  }
  if (!root)
    units.push_back(
        parts.root("root"));  // the casts of inputs and outputs are the outermost unit's
  return units;
}

}  // namespace meshwright
