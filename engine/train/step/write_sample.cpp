#include "engine/train/step/write_sample.h"

#include <algorithm>
#include <vector>

#include "engine/train/step/logits.h"
#include "engine/train/step/sample.h"

namespace meshwright::generate {

std::string write_sample(Trainer& trainer, RunningModel& net, const SampleRequest& request,
                         int64_t seq_len) {
  GenerateOptions options;
  options.max_new_tokens = request.max_bytes;
  options.temperature = request.temperature;
  options.seed = request.seed;
  options.context = std::min(seq_len, net.max_positions());
  std::vector<int64_t> prompt;
  for (char c : request.prompt) prompt.push_back(static_cast<unsigned char>(c));
  std::vector<int64_t> bytes;
  bool training = net.module()->is_training();
  net.module()->eval();
  trainer.model().summon_full_parameters([&] {
    bytes =
        generate_tokens([&](const at::Tensor& ids) { return train::logits_of(trainer, net, ids); },
                        std::move(prompt), options);
  });
  net.module()->train(training);
  std::string text = request.prompt;
  for (int64_t byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

}  // namespace meshwright::generate
