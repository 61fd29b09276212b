// One rank of `meshwright generate`, and of `meshwright evaluate`.
#pragma once

#include "engine/train/preflight/source.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::generate {

// One rank of `meshwright generate`.

// Joins the ranks, fills the model and writes tokens: rank 0 to standard output as they come, what
// was done to standard error. Collective. Returns 0; throws Error.
int generate_rank(const generate::Request& request, rendezvous::Ending& ending);

}  // namespace meshwright::generate
