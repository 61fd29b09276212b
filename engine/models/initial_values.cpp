#include "engine/models/initial_values.h"

namespace meshwright::outlines {

using Kind = InitialValue::Kind;

InitialValues initial_values(const NetConfig& config) {
  return {config.initializer_range, config.padding_row, config.norms_plus_one};
}

InitialValue initial_value(std::string_view parameter, const InitialValues& values) {
  const std::string_view module = module_of(parameter), last = module.substr(module.rfind('.') + 1);
  if (parameter.ends_with(".bias")) return {Kind::constant, 0};
  if (last.ends_with("norm")) return {Kind::constant, values.zero_norms ? 0.0 : 1.0};
  InitialValue out{Kind::normal, values.range};
  if (last == "embed_tokens") out.zero_row = values.padding_row;
  return out;
}

}  // namespace meshwright::outlines
