#include "apps/prove/running/norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sdk/base/words.h"
#include "sdk/kit/comparison/pieces.h"

namespace meshwright::prove {

namespace {

double norm_on(const Run& ranks, size_t rank) { return ranks.ranks[rank].steps[0].grad_norm; }

// Whether each rank's norm is that of what the ranks at its own place along an axis hold.
bool each_its_own(const Run& ranks, const std::string& axis) {
  std::map<int64_t, std::vector<std::vector<Part>>> by_place;
  for (size_t r = 0; r < ranks.ranks.size(); ++r)
    by_place[ranks.coordinate(r, axis)].push_back(unclipped(ranks.ranks[r], 0));
  std::map<int64_t, double> squares;
  for (const auto& [place, parts] : by_place) {
    std::vector<const std::vector<Part>*> each;
    for (const std::vector<Part>& one : parts) each.push_back(&one);
    for (const auto& [name, tensor] : join(each, ranks.rounding).whole)  // NaN: held by no one here
      squares[place] += tensor.nan_to_num(0).square().sum().item<double>();
  }
  for (size_t r = 0; r < ranks.ranks.size(); ++r)
    if (apart(norm_on(ranks, r), std::sqrt(squares[ranks.coordinate(r, axis)])) > 1e-9)
      return false;
  return true;
}

// Parameters of which all ranks of an axis hold the same part.
std::set<std::string> whole_along(const Run& ranks, const std::string& axis) {
  std::set<std::string> out, cut;
  std::map<std::pair<std::string, int64_t>, const Part*> first;
  for (size_t r = 0; r < ranks.ranks.size(); ++r)
    for (const comparison::Axis& one : ranks.ranks[r].seen.axes) {
      if (one.name != axis) continue;
      for (const Part& part : ranks.ranks[r].gradients.front()) {
        const auto [at, made] = first.try_emplace({part.name, one.ranks.front()}, &part);
        if (!made && !(at->second->region == part.region)) cut.insert(part.name);
        if (made && one.ranks.front() != static_cast<int64_t>(r)) cut.insert(part.name);
        out.insert(part.name);
      }
    }
  for (const std::string& name : cut) out.erase(name);
  return out;
}

// What too much or too little a norm has that ranks of an axis hold whole, or that all have.
bool count_of_axis(const Run& truth, const Run& ranks, double more, double squares, Fault& fault) {
  for (const comparison::Axis& axis : ranks.ranks.front().seen.axes) {
    const std::set<std::string> whole = whole_along(ranks, axis.name);
    double own = 0;
    std::vector<std::string> modules;
    for (const auto& [name, tensor] : truth.raw)
      if (whole.contains(name)) {
        own += tensor.square().sum().item<double>();
        modules.push_back(module_of(name));
      }
    const double times = static_cast<double>(axis.ranks.size()) - 1;
    const bool twice =
        whole.size() > 1 && std::abs(more - times * own) <= 1e-9 * squares && own > 1e-9 * squares;
    const bool none = whole.size() > 1 && std::abs(more + own) <= 1e-9 * squares &&
                      own > 1e-9 * squares && own < (1 - 1e-9) * squares;
    if (!twice && !none) continue;
    const std::string what =
        whole.size() == truth.raw.size()
            ? "every parameter"
            : "what the ranks of " + axis.name + " all hold (" + text::first_few(modules, 3) + ")";
    fault.pattern = twice ? "it counts " + what + " " + std::to_string(axis.ranks.size()) +
                                " times, once for each rank of " + axis.name
                          : "it leaves out " + what;
    fault.mend = "of each parameter one rank of every group of replicas counts: " + axis.name +
                 " is in GradientSet::groups of what it cuts, and of nothing else "
                 "(TensorParallel::gradient_sets(), clip_gradients())";
    return true;
  }
  return false;
}

}  // namespace

void find_norm(const Run& truth, const Run& ranks, Findings& out) {
  if (worst_of(ranks.raw, truth.raw).difference > kExact &&
      apart(norm_of(ranks.raw), ranks.ranks.front().steps[0].grad_norm) < 1e-4)
    return;  // the norm is that of wrong gradients, in whatever digits
  const double right = norm_of(truth.raw), squares = right * right;
  double least = norm_on(ranks, 0), mine = least;
  for (size_t r = 0; r < ranks.ranks.size(); ++r) {
    least = std::min(least, norm_on(ranks, r));
    mine = std::max(mine, norm_on(ranks, r));
  }
  // Sums of a rank's own parts may be rounded otherwise, as replicas may.
  const bool alike = apart(least, mine) <= ranks.rounding;
  if (alike && apart(mine, right) <= kExact) return;
  Fault fault{.what = "the gradient norm", .difference = apart(mine, right)};
  if (!alike) {
    std::vector<std::string> axes, missing;  // along which it differs; where a sum is missing
    for (const auto& [name, coordinates] : out.picture.axes) {
      for (size_t r = 0; r < ranks.ranks.size(); ++r)
        for (const comparison::Axis& axis : ranks.ranks[r].seen.axes)
          if (axis.name == name && (axes.empty() || axes.back() != name) &&
              apart(norm_on(ranks, static_cast<size_t>(axis.ranks.front())), norm_on(ranks, r)) >
                  ranks.rounding)
            axes.push_back(name);
      if (each_its_own(ranks, name)) missing.push_back(name);
    }
    fault.pattern = "other norms on other ranks" +
                    (axes.empty() ? "" : " of " + text::join(axes, " and ")) + ", " +
                    comparison::number_text(least) + " to " + comparison::number_text(mine) +
                    "; that of one process is " + comparison::number_text(right);
    if (!missing.empty())
      fault.pattern += ": each rank of " + text::join(missing, " and ") +
                       " counts what it holds alone, and a sum over " +
                       text::join(missing, " and ") + " is missing";
    fault.mend =
        "clip_grad_norm() answers the same on all ranks: sum the squares over the "
        "groups that cut the parameters (GradientSet::groups, clip_gradients())";
    out.faults.push_back(std::move(fault));
    return;
  }
  const double more = mine * mine - squares;
  if (count_of_axis(truth, ranks, more, squares, fault)) {
    out.faults.push_back(std::move(fault));
    return;
  }
  for (const auto& [name, tensor] : truth.raw) {
    const double own = tensor.square().sum().item<double>();
    if (own < 1e-12 * squares) continue;
    const double times = more / own;
    if (!(std::abs(times - std::round(times)) <= 1e-6) || times < -1.5 || times > 64.5 ||
        std::abs(times) < 0.5)
      continue;
    fault.pattern =
        times < 0 ? "it leaves " + name + " out"
                  : "it counts " + name + " " + std::to_string(std::llround(times) + 1) + " times";
    for (const comparison::Axis& axis : ranks.ranks.front().seen.axes)
      if (std::llround(times) + 1 == static_cast<int64_t>(axis.ranks.size()) &&
          whole_along(ranks, axis.name).contains(name))
        fault.pattern += ", once for each rank of " + axis.name;
    fault.mend =
        "of each parameter one rank of every group of replicas counts "
        "(GradientSet::counted, TensorParallel::gradient_sets())";
    out.picture.turn(module_of(name), Picture::Part::gradients);
    break;
  }
  if (fault.pattern.empty()) {
    fault.pattern = comparison::number_text(mine / right) + " times that of one process";
    if (more > 0)
      fault.pattern +=
          "; no parameter's square is what it has too much: see whether it counts "
          "padding behind the parameters in update_groups()";
    fault.mend =
        "the norm is of the elements that parameters() have: clip_gradients() of their "
        "gradients, not of whole buffers";
  }
  out.faults.push_back(std::move(fault));
}

}  // namespace meshwright::prove
