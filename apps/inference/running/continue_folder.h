// A prompt and what the model of a folder, loaded for it, makes of it.
#pragma once

#include "engine/train/preflight/source.h"
#include "engine/train/step/continued.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::generate {

// Collective, without the rank's end: joins the ranks and fills the model. Throws Error.
Continued continue_folder(const Source& source, const Request& request, rendezvous::Ending& ending,
                          const Listener& listener);

}  // namespace meshwright::generate
