// Which token follows, given the logits of all: what is taken from them before one is drawn, in the
// order and by the rules of transformers' logits processors. Links no LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshwright::generate {

struct Sampling {
  double temperature = 0;  // 0: the most likely token, the first of equals
  int64_t top_k = 0;       // 0: all. Else the k most likely ones, and those that equal the last
  // Of these the most likely ones until they hold this part of the probability; of equals at the
  // border the later ones, as transformers sorts.
  double top_p = 1;
  double min_p = 0;  // and of these those that have this part of the likeliest one's probability
  // Before all else: logits of tokens that the text has are divided by it where positive, else
  // multiplied.
  double repetition_penalty = 1;
};

// Throws Error(out_of_range) "cannot generate: ..." for a temperature that is not finite and >= 0,
// a negative top_k, a top_p outside (0, 1], a min_p outside [0, 1], or a penalty that is not
// finite and > 0.
void check_sampling(const Sampling& sampling);
[[noreturn]] void refuse_to_generate(const std::string& what);

// `text`: the ids of prompt and answer so far.
void penalize(std::span<float> logits, std::span<const int64_t> text, double repetition_penalty);

// What each token weighs in the draw, 0 for those that are ruled out, and the sum. With a
// temperature.
struct Weights {
  std::vector<double> of;
  double sum = 0;
};
Weights weigh(std::span<const float> logits, const Sampling& sampling);

// Inverse of the cumulative distribution at `uniform` in [0, 1).
int64_t draw(const Weights& weights, double uniform);

// Natural logarithm of the token's probability under the softmax of the logits themselves.
double log_probability(std::span<const float> logits, int64_t token);

}  // namespace meshwright::generate
