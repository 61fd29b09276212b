// One rank of `meshwright evaluate`.
#pragma once

#include "apps/inference/evaluation.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::evaluate {

// Joins the ranks, fills the model and measures its loss on every sample once, whatever the number
// of ranks and their layout: rank 0 writes what was found to standard output. Collective. Returns
// 0; throws Error.
int evaluate_rank(const Request& request, rendezvous::Ending& ending);

}  // namespace meshwright::evaluate
