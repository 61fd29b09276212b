// A prompt and what a model that is there makes of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/train/preflight/source.h"
#include "meshwright/model/running_model.h"
#include "meshwright/trainer.h"

namespace meshwright::generate {

// Who hears of it while it is made; all must be set.
struct Listener {
  std::function<void(const std::string& text)> notice;  // rank 0
  std::function<void(int64_t rank, const std::vector<int64_t>& prompt)> begin;
  std::function<void(int64_t id, bool ends)> token;  // `ends`: no part of the text, but its end
};

// The tokens behind the prompt, and how long they took.
struct Continued {
  std::vector<int64_t> prompt, tokens;
  bool ended = false;  // the last one is a stop token
  double seconds = 0;
  double rate() const { return seconds > 0 ? static_cast<double>(tokens.size()) / seconds : 0; }
};

// Collective. `context`: how far the model looks back.
Continued continue_prompt(Trainer& trainer, RunningModel& net, const std::vector<int64_t>& prompt,
                          const Request& request, const std::vector<int64_t>& stops,
                          int64_t context, const Listener& listener);

}  // namespace meshwright::generate
