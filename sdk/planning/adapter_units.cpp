// Adapters beside a frozen base: units of their own.
#include <algorithm>
#include <utility>

#include "footprint_parts.h"
#include "sdk/base/low_rank.h"

namespace meshwright::footprint {

bool trains_beside(const ModelOutline& outline, const std::vector<size_t>& parameters) {
  int64_t trained = 0, frozen = 0;  // elements, as the model has them: alike on all ranks
  bool adapts = false;
  for (size_t p : parameters) {
    const ParameterOutline& parameter = outline.parameters[p];
    int64_t& elements = parameter.trainable ? trained : frozen;
    elements = plus(elements, element_count(parameter.shape));
    adapts = adapts || (parameter.trainable && low_rank_factor(parameter.name));
  }
  return adapts && trained < frozen;
}

void part_adapters(const ModelOutline& outline, std::vector<PlannedUnit>& units) {
  std::vector<PlannedUnit> out;
  for (PlannedUnit& unit : units) {
    if (unit.module_list >= 0 && !unit.experts && trains_beside(outline, unit.parameters)) {
      PlannedUnit& adapters = out.emplace_back(unit);
      adapters.name += ".adapters";
      adapters.reshard_after_forward = adapters.last_of_module_list = false;
      adapters.once_a_step = true;
      auto trains = [&](size_t p) { return outline.parameters[p].trainable; };
      std::erase_if(adapters.parameters, [&](size_t p) { return !trains(p); });
      std::erase_if(unit.parameters, trains);
    }
    out.push_back(std::move(unit));
  }
  units = std::move(out);
}

}  // namespace meshwright::footprint
