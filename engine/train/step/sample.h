// Text from a model, one token after another: greedy or with a temperature.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace meshwright::generate {

// Token ids [1, length] int64 on the CPU to logits [1, length, vocab] on any device, or to those of
// the last position alone. Under a sharded strategy every rank must call generate_tokens() alike,
// because every forward is collective.
using LogitsOf = std::function<at::Tensor(const at::Tensor& ids)>;

struct GenerateOptions {
  int64_t max_new_tokens = 100;
  double temperature = 0;          // 0: the most likely token, the first of equals
  uint64_t seed = 0;               // with a temperature; the same seed gives the same text
  int64_t context = 0;             // the model sees at most the last `context` tokens; required
  std::vector<int64_t> stop = {};  // ends after one of these
  int64_t top_k =
      0;  // with a temperature: only the k most likely tokens, the first of equals; 0: all
  double top_p =
      1;  // and of these only the most likely ones until they hold this part of the probability
  std::function<void(int64_t token)> each = {};  // hears every new token at once
};

// Throws Error(out_of_range), as generate_tokens() does.
void check_sampling(double temperature, int64_t top_k, double top_p);

// The new tokens, without the prompt. Throws Error(out_of_range) for an empty prompt, a temperature
// that is not finite and >= 0, a negative top_k, a top_p outside (0, 1], or a context below 1;
// Error(nonfinite) when the logits are not numbers.
std::vector<int64_t> generate_tokens(const LogitsOf& logits_of, std::vector<int64_t> prompt,
                                     const GenerateOptions& options);

}  // namespace meshwright::generate
