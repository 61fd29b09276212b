#include "apps/prove/running/runs.h"

#include <algorithm>
#include <cmath>

#include "sdk/base/plain_text.h"
#include "sdk/kit/comparison/pieces.h"

namespace meshwright::prove {

using at::Tensor;
using comparison::Assembly;

double apart(double found, double expected) {
  if (!std::isfinite(found) && !std::isfinite(expected)) return 0;
  const double scale = std::max(std::abs(expected), 1e-30);
  const double out = std::abs(found - expected) / scale;
  return std::isfinite(out) ? out : HUGE_VAL;
}

Joined join(const std::vector<const std::vector<Part>*>& ranks, double rounding) {
  Joined out;
  std::map<std::string, Assembly> all;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const Part& part : *ranks[rank]) {
      Assembly& one = all.try_emplace(part.name, part.shape, part.values.options()).first->second;
      const auto wrong = one.add(static_cast<int64_t>(rank), part.region, part.values,
                                 rounding > 0 ? rounding * largest(part.values) : 0);
      if (!wrong || !out.differ.empty()) continue;
      out.name = part.name;
      out.rank = static_cast<int64_t>(rank);
      out.other = wrong->other;
      const char* digits = "%.17g";  // so many tell any two apart
      out.differ = part.name + ": rank " + std::to_string(rank) + " has " +
                   text::format(digits, wrong->mine) + " at " +
                   comparison::element_text(wrong->at, one.shape()) + ", rank " +
                   std::to_string(wrong->other) + " " + text::format(digits, wrong->theirs);
    }
  for (auto& [name, one] : all) {
    if (one.owners().lt(0).any().item<bool>() && out.holes.empty())
      out.holes = name + " is not held whole by the ranks";
    const Tensor whole = one.whole();
    out.types[name] = whole.scalar_type();
    out.whole[name] = whole.to(at::kDouble);
  }
  return out;
}

Worst worst_of(const Whole& found, const Whole& expected) {
  double scale = 0;
  for (const auto& [name, tensor] : expected) scale = std::max(scale, largest(tensor));
  Worst out;
  if (expected.empty()) out.take(HUGE_VAL, "there is nothing to compare");
  for (const auto& [name, tensor] : expected) {
    const auto at = found.find(name);
    const double mine = std::max(largest(tensor), 1e-3 * scale);
    const double one = at == found.end() || at->second.sizes() != tensor.sizes()
                           ? HUGE_VAL
                           : largest(at->second - tensor);
    out.take(mine > 0 ? one / mine : one, name);
  }
  return out;
}

Worst distance_of(const Whole& found, const Whole& expected) {
  double apart = 0, all = 0;
  for (const auto& [name, tensor] : expected) {
    const auto at = found.find(name);
    all += tensor.square().sum().item<double>();
    apart += at == found.end() || at->second.sizes() != tensor.sizes()
                 ? HUGE_VAL
                 : (at->second - tensor).square().sum().item<double>();
  }
  return {all > 0 ? std::sqrt(apart / all) : HUGE_VAL, "all parameters together"};
}

Whole only(const Whole& all, const std::string& state, bool others) {
  Whole out;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(state) != others) out[name] = tensor;
  return out;
}

Whole updates(const Whole& begin, const Whole& end) {
  Whole out;
  for (const auto& [name, tensor] : end)
    if (const auto at = begin.find(name); at != begin.end() && at->second.sizes() == tensor.sizes())
      out[name] = tensor - at->second;
  return out;
}

double norm_of(const Whole& all) {
  double out = 0;
  for (const auto& [name, tensor] : all) out += tensor.square().sum().item<double>();
  return std::sqrt(out);
}

std::string module_of(const std::string& parameter) {
  return parameter.substr(0, std::min(parameter.rfind('.'), parameter.size()));
}

std::vector<Part> unclipped(const Captured& rank, size_t step) {
  std::vector<Part> out = rank.gradients.at(step);
  for (Part& part : out) part.values = part.values / rank.clipped_by.at(step);
  return out;
}

std::vector<Part> moved(const Captured& rank, size_t step) {
  std::map<std::string, Tensor> before;
  for (const Part& part : rank.states.at(step)) before[part.name] = part.values;
  std::vector<Part> out;
  for (const Part& part : rank.states.at(step + 1)) {
    const auto at = before.find(part.name);
    if (!part.name.starts_with("weight ") || at == before.end()) continue;
    out.push_back(part);
    out.back().name = part.name.substr(std::string("weight ").size());
    out.back().values = part.values.to(at::kDouble) - at->second.to(at::kDouble);
  }
  return out;
}

void Run::put_together() {
  begin = together([](const Captured& rank) { return rank.states.front(); });
  if (ranks.front().steps.empty()) return;  // it went on from a checkpoint
  gradients = together([](const Captured& rank) { return rank.gradients.front(); });
  end = together([](const Captured& rank) { return rank.states.back(); });
  raw = together([](const Captured& rank) { return unclipped(rank, 0); }).whole;
}

const Joined& Run::parted() const {
  return !begin.differ.empty() ? begin : !end.differ.empty() ? end : gradients;
}

std::optional<Run::Written> Run::written_by_evaluation() const {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::vector<Part>&after = ranks[r].evaluated_state, &before = ranks[r].states.back();
    for (size_t i = 0; i < std::min(after.size(), before.size()); ++i)
      if (!after[i].values.equal(before[i].values)) return Written{after[i].name, r};
  }
  return std::nullopt;
}

int64_t Run::coordinate(size_t rank, const std::string& axis) const {
  for (const comparison::Axis& one : ranks[rank].seen.axes)
    if (one.name == axis)
      return std::ranges::find(one.ranks, static_cast<int64_t>(rank)) - one.ranks.begin();
  return 0;
}

}  // namespace meshwright::prove
