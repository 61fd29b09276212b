#include "sdk/kit/comparison/wrong.h"

#include <algorithm>
#include <optional>

#include "sdk/kit/comparison/pieces.h"

namespace meshwright::comparison {

std::vector<Wrong> wrong_tensors(const std::map<std::string, at::Tensor>& truth,
                                 const std::map<std::string, std::vector<Piece>>& pieces,
                                 const std::vector<std::vector<Axis>>& axes, int64_t accumulation,
                                 double tolerance, std::vector<std::string>& missing) {
  double scale = 0;
  for (const auto& [name, whole] : truth) scale = std::max(scale, largest(whole));
  std::vector<Wrong> out;
  for (const auto& [name, whole] : truth) {
    const auto at = pieces.find(name);
    if (at == pieces.end()) {
      missing.push_back(name);
      continue;
    }
    const std::optional<Pattern> pattern = diagnose(
        whole, at->second, axes, accumulation, tolerance * std::max(largest(whole), 1e-3 * scale));
    if (!pattern) continue;
    const auto same = std::ranges::find_if(
        out, [&](const Wrong& group) { return group.pattern.text == pattern->text; });
    if (same != out.end())
      same->names.push_back(name);
    else
      out.push_back({*pattern, {name}});
  }
  return out;
}

}  // namespace meshwright::comparison
