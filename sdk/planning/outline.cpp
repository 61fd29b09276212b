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

}  // namespace meshwright
