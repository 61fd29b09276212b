// One rank of `meshwright doctor`.
#pragma once

#include "apps/doctor/finding.h"
#include "engine/launch/rendezvous/error_exchange.h"

namespace meshwright::doctor {

// Collective over the ranks of the launcher. Looks at this host, meets the others, measures what is
// between them; rank 0 prints. The exit status, the same on all ranks: that of the worst finding.
// Throws what keeps the ranks from meeting, or breaks in the middle, once rank 0 has printed what
// is known by then.
int doctor_rank(const Request& request, rendezvous::Ending& ending);

}  // namespace meshwright::doctor
