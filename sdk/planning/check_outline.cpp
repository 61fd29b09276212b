#include "sdk/base/check_outline.h"

#include <algorithm>
#include <set>

namespace meshwright {

namespace {

// Sizes are counted in int64.
constexpr int64_t kMostElements = int64_t{1} << 48;

std::string problem_of_shape(const ParameterOutline& p) {
  int64_t elements = 1;
  for (const int64_t size : p.shape) {
    if (size <= 0) return "the shape of " + p.name + " has a size that is not above 0";
    if (size > kMostElements / elements)
      return "the shape of " + p.name + " has more than 2^48 elements";
    elements *= size;
  }
  if (!p.fused) return "";
  int64_t rows = 0;
  for (const int64_t part : p.fused->parts) rows += part * p.fused->groups;
  if (!p.shape.empty() && rows == p.shape.front()) return "";
  return "the fused parts of " + p.name + " have " + std::to_string(rows) +
         " rows, the parameter " + std::to_string(p.shape.empty() ? 0 : p.shape.front());
}

}  // namespace

std::vector<std::string> problems_of(const ModelOutline& o) {
  std::vector<std::string> out;
  auto positive = [&](const char* what, int64_t value) {
    if (value <= 0) out.push_back(std::string(what) + " is " + std::to_string(value));
  };
  if (o.architecture.empty()) out.emplace_back("architecture is empty");
  positive("hidden_size", o.hidden_size);
  positive("vocab_size", o.vocab_size);
  if (o.layers < 0) positive("layers", o.layers);
  if (o.attention_heads > 0 && o.key_value_heads > 0 && o.attention_heads % o.key_value_heads != 0)
    out.push_back("attention_heads (" + std::to_string(o.attention_heads) +
                  ") is no multiple of key_value_heads (" + std::to_string(o.key_value_heads) +
                  ")");
  if (o.positions_end && o.max_positions <= 0)
    out.emplace_back("positions_end without max_positions: no sample could be short enough");
  if (o.modules.empty() || !o.modules.front().name.empty())
    out.emplace_back("its first module is not the model itself, whose name is empty");
  if (o.parameters.empty()) out.emplace_back("it has no parameters");
  std::set<std::string_view> modules, parameters;
  for (const ModuleOutline& m : o.modules) {
    if (const std::string_view parent = module_of(m.name);
        !m.name.empty() && !modules.contains(parent))
      out.push_back("the module " + m.name + " stands before \"" + std::string(parent) +
                    "\", which has it");
    if (!modules.insert(m.name).second) out.push_back("two modules are called " + m.name);
  }
  for (const ParameterOutline& p : o.parameters) {
    if (p.name.empty() || p.name.ends_with('.')) out.emplace_back("a parameter has no name");
    if (!parameters.insert(p.name).second) out.push_back("two parameters are called " + p.name);
    if (!modules.contains(module_of(p.name)))
      out.push_back("no module of the outline has the parameter " + p.name);
    if (std::string bad = problem_of_shape(p); !bad.empty()) out.push_back(std::move(bad));
  }
  return out;
}

}  // namespace meshwright
