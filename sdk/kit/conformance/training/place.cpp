#include "sdk/kit/conformance/training/place.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "sdk/base/words.h"
#include "sdk/kit/comparison/watch.h"
#include "sdk/kit/comparison/wrong.h"

namespace meshwright::conformance {

namespace {

// The first step's micro-batches in one process, each once.
std::vector<comparison::Seen> seen_alone(const std::vector<Evidence>& ranks) {
  Net net = make_net();
  {
    c10::NoGradGuard no_grad;
    const Tensors first = first_state().parameters;
    for (auto& item : net->named_parameters()) item.value().copy_(first.at(item.key()));
  }
  comparison::Watch watch(*net);
  std::map<int64_t, std::vector<int64_t>> batches;
  for (const Evidence& rank : ranks)
    for (const std::vector<int64_t>& rows : rank.micro_batches)
      if (!rows.empty()) batches.emplace(rows.front(), rows);
  for (const auto& [first, rows] : batches) {
    watch.begin(first);
    (loss_sum_of(net, samples(0, rows)) * ranks.front().weight).backward();
  }
  watch.stop();
  return watch.take();
}

std::string line_of(const std::string& what, const comparison::Pattern& pattern) {
  return what + (pattern.text.empty() ? "" : ": " + pattern.text) +
         (pattern.mend.empty() ? "" : "; " + pattern.mend);
}

}  // namespace

std::vector<std::string> place_of_fault(const std::vector<Evidence>& ranks,
                                        const Reference& reference, double tolerance) {
  std::vector<std::string> out;
  std::vector<std::vector<comparison::Axis>> axes;
  std::vector<comparison::RankSeen> seen;
  for (const Evidence& rank : ranks) {
    axes.push_back(rank.seen.axes);
    seen.push_back(rank.seen);
  }
  if (std::ranges::none_of(seen, [](const auto& rank) { return rank.seen.empty(); })) {
    const comparison::Compared found =
        comparison::compare_modules(seen_alone(ranks), seen, kLength, tolerance);
    if (found.fault) {
      std::vector<std::string> wrong;
      for (const int64_t rank : found.fault->ranks) wrong.push_back(std::to_string(rank));
      out.push_back(
          line_of(std::string("it turns wrong in the ") +
                      (found.fault->backward ? "gradient of the output of " : "output of ") +
                      found.fault->module + " (" + (wrong.size() == 1 ? "rank " : "ranks ") +
                      text::join(wrong, ", ") + ")",
                  found.fault->pattern));
    }
  }
  for (size_t step = 0; step < reference.gradients.size(); ++step) {
    std::map<std::string, std::vector<comparison::Piece>> pieces;
    for (const Evidence& rank : ranks)
      if (step < rank.gradients.size())
        for (const auto& [name, piece] : rank.gradients[step]) pieces[name].push_back(piece);
    if (pieces.empty()) continue;
    std::vector<std::string> missing;
    const std::vector<comparison::Wrong> wrong = comparison::wrong_tensors(
        reference.gradients[step], pieces, axes,
        static_cast<int64_t>(ranks.front().micro_batches.size()), tolerance, missing);
    // Gradients that are nearly zero turn into other patterns by their rounding.
    const auto most = std::ranges::max_element(
        wrong, {}, [](const comparison::Wrong& group) { return group.names.size(); });
    if (most == wrong.end()) continue;
    out.push_back(line_of((most->names.size() == 1 ? "the gradient of " : "the gradients of ") +
                              text::first_few(most->names, 4) + " in step " +
                              std::to_string(step + 1),
                          most->pattern));
    break;
  }
  return out;
}

}  // namespace meshwright::conformance
