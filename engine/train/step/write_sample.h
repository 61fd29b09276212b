// A text of the trained model, at the end of a run.
#pragma once

#include <cstdint>
#include <string>

#include "meshwright/model/running_model.h"
#include "meshwright/trainer.h"

namespace meshwright::generate {

// What `train --sample` asks for.
struct SampleRequest {
  std::string prompt;     // its bytes are the tokens
  int64_t max_bytes = 0;  // new ones
  double temperature = 0;
  uint64_t seed = 0;
};

// Collective. Parameters are gathered once for the whole text; every rank writes the same one.
// `seq_len`: of training; the model looks no further back.
std::string write_sample(Trainer& trainer, RunningModel& net, const SampleRequest& request,
                         int64_t seq_len);

}  // namespace meshwright::generate
