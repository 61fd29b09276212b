// A checkpoint of the ranks, loaded by one process, and that one's by the ranks.
#pragma once

#include <vector>

#include "apps/prove/findings.h"
#include "apps/prove/running/runs.h"

namespace meshwright::prove {

// What may differ in the step that follows, relative: `one`: between the ranks and one process,
// which round otherwise where they do not compute in float64; `back`: between the ranks before and
// after.
struct StepTolerance {
  double one = 0, back = 0;
  bool norms = true;  // of the gradients are compared too, not only losses
};

// Adds rows and, where something differs, what and how. `saved`: the run that made the checkpoint;
// `one` went on from it and made another at once, from which `back` went on.
void compare_resumed(const Run& saved, const Run& one, const Run& back,
                     const StepTolerance& tolerance, Findings& out);

}  // namespace meshwright::prove
