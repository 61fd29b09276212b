#include "apps/prove/running/explained.h"

#include <ATen/ops/linalg_pinv.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::prove {

using at::Tensor;
using comparison::Pattern;

namespace {

double product(const Whole& a, const Whole& b) {
  double out = 0;
  for (const auto& [name, tensor] : a)
    if (const auto at = b.find(name); at != b.end())
      out += (tensor * at->second).sum().item<double>();
  return out;
}

Whole sum_of(const Whole& a, const Whole& b, double by) {
  Whole out = a;
  for (auto& [name, tensor] : out)
    if (const auto at = b.find(name); at != b.end()) tensor = tensor + at->second * by;
  return out;
}

std::vector<std::string> routed(const Run& truth) {
  std::vector<std::string> out;
  for (const ExpertLoad& one : truth.ranks.front().steps.front().experts) out.push_back(one.block);
  return out;
}

}  // namespace

std::optional<Pattern> of_auxiliary(const Run& truth, const Run& ranks, const Again& again) {
  const std::optional<Run> without = again({.without_auxiliary = true, .one_step = true});
  if (!without) return std::nullopt;
  const Whole auxiliary = sum_of(truth.raw, without->raw, -1),
              more = sum_of(ranks.raw, truth.raw, -1);
  const double squares = product(auxiliary, auxiliary);
  if (squares < 1e-16 * product(truth.raw, truth.raw)) return std::nullopt;
  const double times = product(more, auxiliary) / squares;
  if (worst_of(sum_of(truth.raw, auxiliary, times), ranks.raw).difference > 1e-6)
    return std::nullopt;
  const std::string said = comparison::times_text(times + 1);
  return Pattern{
      "the auxiliary loss of " + text::first_few(routed(truth), 2) + " is " + said +
          " on every rank" +
          comparison::factor_text(times + 1, ranks.ranks.front().seen.axes,
                                  ranks.ranks.front().accumulation),
      "its part of each rank's loss is set by LoadBalance::set_scale(): nothing else multiplies "
      "it, by ranks or micro-batches, or cuts it off"};
}

std::optional<Pattern> of_micro_batches(const Run& truth, const Run& ranks, const Again& again) {
  const int64_t count = truth.ranks.front().accumulation, each = ranks.ranks.front().accumulation,
                dp = count / each;
  if (count < 2 || count > 16) return std::nullopt;
  std::vector<Whole> alone;
  for (int64_t i = 0; i < count; ++i) {
    std::optional<Run> one = again({.micro_batch = i, .one_step = true});
    if (!one) return std::nullopt;
    alone.push_back(std::move(one->raw));
  }
  Tensor matrix = at::zeros({count, count}, at::kDouble),
         right = at::zeros({count, 1}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) {
    right[i][0] = product(alone[static_cast<size_t>(i)], ranks.raw);
    for (int64_t j = 0; j < count; ++j)
      matrix[i][j] = product(alone[static_cast<size_t>(i)], alone[static_cast<size_t>(j)]);
  }
  const Tensor weights = at::matmul(at::linalg_pinv(matrix, 1e-13), right).flatten();
  Whole all;
  std::vector<std::string> said;
  std::vector<double> by;
  for (int64_t i = 0; i < count; ++i) {
    by.push_back(weights[i].item<double>());
    const Whole& one = alone[static_cast<size_t>(i)];
    all = i == 0 ? sum_of(one, one, by[0] - 1) : sum_of(all, one, by.back());
    said.push_back(text::format("%.3g", std::abs(by.back()) < 1e-6 ? 0 : by.back()));
  }
  if (worst_of(all, ranks.raw).difference > 1e-6) return std::nullopt;
  auto like = [&](const std::function<double(int64_t)>& of) {
    for (int64_t i = 0; i < count; ++i)
      if (std::abs(by[static_cast<size_t>(i)] - of(i)) > 1e-5 * std::max(1.0, std::abs(of(i))))
        return false;
    return true;
  };
  const std::string mend =
      "micro-batches add up: begin_micro_batch() clears nothing and weighs nothing, begin_step() "
      "clears";
  if (like([&](int64_t i) { return i / dp == each - 1 ? 1.0 : 0.0; }))
    return Pattern{"those of the last micro-batch of a step alone, of " + std::to_string(each),
                   mend};
  const std::string list = text::join(said, ", ");
  bool of_rank = true, of_turn = true;
  for (int64_t i = 0; i < count; ++i) {
    of_rank =
        of_rank && std::abs(by[static_cast<size_t>(i)] - by[static_cast<size_t>(i % dp)]) < 1e-5;
    of_turn = of_turn &&
              std::abs(by[static_cast<size_t>(i)] - by[static_cast<size_t>(i / dp * dp)]) < 1e-5;
  }
  if (of_turn)
    return Pattern{"micro-batches of a step weigh differently, " + list + " times", mend};
  std::vector<std::string> axes;
  for (const comparison::Axis& axis : ranks.ranks.front().seen.axes)
    if (axis.name.starts_with("dp")) axes.push_back(axis.name);
  return Pattern{
      std::string(of_rank ? "ranks" : "ranks and their micro-batches") + " of " +
          text::join(axes, " and ") + " weigh differently, " + list + " times" +
          (of_rank ? "" : ": a mean of means, if those with fewer targets weigh more"),
      "what each divides by must be summed over all of them first: losses are sums over targets, "
      "divided once by the number of all targets of the step"};
}

}  // namespace meshwright::prove
