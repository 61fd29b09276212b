#include "meshwright/outline.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "meshwright/error.h"

namespace meshwright {

const ModuleOutline* ModelOutline::find_module(std::string_view name) const {
  for (const ModuleOutline& module : modules)
    if (module.name == name) return &module;
  return nullptr;
}

const ParameterOutline* ModelOutline::find_parameter(std::string_view name) const {
  for (const ParameterOutline& parameter : parameters)
    if (parameter.name == name) return &parameter;
  return nullptr;
}

std::string_view module_of(std::string_view parameter) {
  size_t dot = parameter.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : parameter.substr(0, dot);
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    if (__builtin_mul_overflow(count, size, &count))
      throw Error(ErrorCode::bad_model_config,
                  "a parameter has more elements than 64 bits can count");
  return count;
}

std::vector<Unit> plan_units(const ModelOutline& outline) {
  // Direct items of every list that does not itself lie inside a unit. Lists come in pre-order; a
  // nested list's items become units of their own before the outer list's item takes what is left
  // of it.
  std::vector<Unit> units;
  std::map<std::string, size_t, std::less<>> unit_of;  // unit name -> index
  auto inside_unit = [&](std::string_view name) {
    for (std::string_view at = module_of(name); !at.empty(); at = module_of(at))
      if (unit_of.contains(at)) return true;
    return false;
  };
  for (const ModuleOutline& list : outline.modules) {
    if (list.kind != ModuleKind::list || inside_unit(list.name) || unit_of.contains(list.name))
      continue;
    std::string prefix = list.name + ".";
    size_t last = units.size();
    bool any = false;
    for (const ModuleOutline& item : outline.modules) {
      if (!item.name.starts_with(prefix) ||
          item.name.find('.', prefix.size()) != std::string::npos || item.kind == ModuleKind::list)
        continue;
      unit_of.emplace(item.name, units.size());
      last = units.size();
      any = true;
      units.push_back({item.name, false, {}});
    }
    if (any) units[last].last_of_module_list = true;
  }
  Unit root{"root", false, {}};
  for (size_t i = 0; i < outline.parameters.size(); ++i) {
    Unit* owner = &root;
    for (std::string_view at = module_of(outline.parameters[i].name); !at.empty();
         at = module_of(at))
      if (auto it = unit_of.find(at); it != unit_of.end()) {
        owner = &units[it->second];
        break;
      }
    owner->parameters.push_back(i);
  }
  units.push_back(std::move(root));
  return units;
}

}  // namespace meshwright
