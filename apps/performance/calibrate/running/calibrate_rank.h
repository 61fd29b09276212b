// One rank of `meshwright calibrate`.
#pragma once

#include "apps/performance/calibrate/measured.h"
#include "engine/launch/rendezvous/error_exchange.h"

namespace meshwright::calibrate {

// Collective over the ranks of the launcher. Meets the others, measures kernels on all ranks at
// once and collectives between them; rank 0 writes the file and prints. 0; throws what keeps the
// ranks from meeting, what breaks in the middle, and Error(output_unwritable), on every rank.
int calibrate_rank(const Request& request, rendezvous::Ending& ending);

}  // namespace meshwright::calibrate
