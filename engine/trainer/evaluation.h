// What Trainer::evaluate() finds, with the number of targets it found it on.
#pragma once

#include <cstdint>

#include "meshwright/trainer.h"

namespace meshwright::train {

struct Evaluation {
  double loss = 0;    // mean over the targets, by their weights; 0 where they have none
  double weight = 0;  // the sum of these weights
  int64_t targets = 0;
};

struct Evaluator {
  // Collective. As Trainer::evaluate().
  static Evaluation run(Trainer& trainer, int64_t micro_batches,
                        const Trainer::StageForward& forward);
};

}  // namespace meshwright::train
