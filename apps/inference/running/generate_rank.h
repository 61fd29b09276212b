// One rank of `meshwright generate`, and of `meshwright evaluate`.
#pragma once

#include "apps/inference/evaluation.h"
#include "engine/train/preflight/source.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::evaluate {

// Joins the ranks, fills the model and measures its loss on every sample once, whatever the number
// of ranks and their layout: rank 0 writes what was found to standard output. Collective. Returns
// 0; throws Error.
int evaluate_rank(const Request& request, rendezvous::Ending& ending);

}  // namespace meshwright::evaluate

namespace meshwright::generate {

// Joins the ranks, fills the model and writes tokens: rank 0 to standard output as they come, what
// was done to standard error. Collective. Returns 0; throws Error.
int generate_rank(const generate::Request& request, rendezvous::Ending& ending);

}  // namespace meshwright::generate
