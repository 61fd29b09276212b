#include "engine/train/step/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>

#include "meshwright/error.h"

namespace meshwright::generate {

void refuse_to_generate(const std::string& what) {
  throw Error(ErrorCode::out_of_range, "cannot generate: " + what);
}

void check_sampling(const Sampling& sampling) {
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature))
    refuse_to_generate("the temperature must be a number of at least 0");
  if (sampling.top_k < 0)
    refuse_to_generate("top_k = " + std::to_string(sampling.top_k) + " must not be negative");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    refuse_to_generate("top_p must be above 0 and at most 1");
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1))
    refuse_to_generate("min_p must be at least 0 and at most 1");
  if (!(sampling.repetition_penalty > 0) || !std::isfinite(sampling.repetition_penalty))
    refuse_to_generate("the repetition penalty must be a number above 0");
}

void penalize(std::span<float> logits, std::span<const int64_t> text, double repetition_penalty) {
  if (repetition_penalty == 1) return;
  const auto penalty = static_cast<float>(repetition_penalty);
  std::vector<bool> done(logits.size());
  for (int64_t id : text) {
    const auto at = static_cast<size_t>(id);
    if (at >= logits.size() || done[at]) continue;
    done[at] = true;
    logits[at] = logits[at] < 0 ? logits[at] * penalty : logits[at] / penalty;
  }
}

namespace {

// How many tokens top_k leaves.
size_t kept_by_top_k(std::span<const float> logits, int64_t top_k) {
  std::vector<float> sorted(logits.begin(), logits.end());
  const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(top_k - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  const float least = *last;
  return static_cast<size_t>(
      std::ranges::count_if(logits, [least](float v) { return v >= least; }));
}

}  // namespace

Weights weigh(std::span<const float> logits, const Sampling& sampling) {
  const size_t vocab = logits.size();
  const auto top = static_cast<double>(*std::ranges::max_element(logits));
  Weights out{std::vector<double>(vocab), 0};
  for (size_t i = 0; i < vocab; ++i)
    out.sum += out.of[i] = std::exp((static_cast<double>(logits[i]) - top) / sampling.temperature);
  const bool some = sampling.top_k > 0 && sampling.top_k < static_cast<int64_t>(vocab);
  if (!some && sampling.top_p >= 1 && sampling.min_p <= 0) return out;
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), size_t{0});
  // By logit: weights of unlikely tokens are all zero.
  auto likelier = [&](size_t a, size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a > b;
  };
  const size_t kept = some ? kept_by_top_k(logits, sampling.top_k) : vocab;
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    likelier);
  double all = 0;
  for (size_t i = 0; i < kept; ++i) all += out.of[order[i]];
  size_t last = 0;
  out.sum = 0;
  // Descending weights: the first one below the bound ends both.
  while (last < kept &&
         (last == 0 || (out.sum < sampling.top_p * all && out.of[order[last]] >= sampling.min_p)))
    out.sum += out.of[order[last++]];
  for (size_t i = last; i < vocab; ++i) out.of[order[i]] = 0;
  return out;
}

int64_t draw(const Weights& weights, double uniform) {
  double left = uniform * weights.sum;
  size_t last = 0;
  for (size_t i = 0; i < weights.of.size(); ++i) {
    if (weights.of[i] == 0) continue;
    last = i;
    left -= weights.of[i];
    if (left < 0) break;
  }
  return static_cast<int64_t>(last);
}

double log_probability(std::span<const float> logits, int64_t token) {
  const auto top = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return static_cast<double>(logits[static_cast<size_t>(token)]) - top - std::log(sum);
}

}  // namespace meshwright::generate
