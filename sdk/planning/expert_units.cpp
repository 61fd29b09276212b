#include "expert_units.h"

#include <algorithm>

namespace meshwright {

SplitUnit ExpertUnits::split(const std::vector<std::string_view>& names, bool outside_lists,
                             const std::function<bool(size_t)>& is_expert) const {
  SplitUnit out;
  for (size_t p = 0; p < names.size(); ++p) {
    std::string_view module = module_of(names[p]);
    const ModuleOutline* found = modules_.find(module);
    const bool root = outside_lists && !tied_, expert = is_expert(p),
               head = root && module.ends_with("lm_head");
    const bool embedding = root && found != nullptr && found->kind == ModuleKind::embedding;
    if (!expert && !head && !embedding) {
      out.rest.push_back(p);
      continue;
    }
    auto at = std::find_if(out.apart.begin(), out.apart.end(),
                           [&](const UnitApart& unit) { return unit.module == module; });
    if (at == out.apart.end()) {
      using Role = UnitApart::Role;
      const Role role = expert ? Role::experts : head ? Role::head : Role::embedding;
      at = out.apart.insert(out.apart.end(), {std::string(module), role, {}});
    }
    at->parameters.push_back(p);
  }
  return out;
}

}  // namespace meshwright
