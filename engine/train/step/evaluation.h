// What Trainer::evaluate() finds, with the number of targets it found it on.
#pragma once

#include <cstdint>

#include "meshwright/trainer.h"

namespace meshwright::train {

struct Evaluation {
  // Mean over the targets, by their weights; NaN where they have none. What a model with experts
  // adds to it while it trains stands beside it: that depends on which samples are read together.
  double loss = 0;
  double auxiliary = 0;  // NaN where the model reports none
  double weight = 0;     // the sum of these weights
  int64_t targets = 0;
};

struct Evaluator {
  // Collective. As Trainer::evaluate().
  static Evaluation run(Trainer& trainer, int64_t micro_batches,
                        const Trainer::StageForward& forward);
};

}  // namespace meshwright::train
