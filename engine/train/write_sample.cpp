#include "engine/train/write_sample.h"

#include <algorithm>
#include <vector>

#include "engine/nets/sample.h"
#include "engine/train/logits.h"

namespace meshwright::train {

using at::Tensor;

std::string write_sample(Trainer& trainer, nets::CausalLM& net, const RunOptions& options,
                         int64_t seq_len, uint64_t seed) {
  nets::GenerateOptions generate;
  generate.max_new_tokens = options.sample_bytes;
  generate.temperature = options.sample_temperature;
  generate.seed = seed;
  generate.context =
      std::min(seq_len, net->max_positions());  // no further back than it has learned to look
  std::vector<int64_t> prompt;
  for (char c : options.sample_prompt) prompt.push_back(static_cast<unsigned char>(c));
  std::vector<int64_t> bytes;
  bool training = net->is_training();
  net->eval();
  trainer.model().summon_full_parameters([&] {
    bytes = nets::generate([&](const Tensor& ids) { return logits_of(trainer, net, ids); },
                           std::move(prompt), generate);
  });
  net->train(training);
  std::string text = options.sample_prompt;
  for (int64_t byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

}  // namespace meshwright::train
