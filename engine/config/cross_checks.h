// Rules between keys that need no strategy.
#pragma once

#include "engine/config/config.h"
#include "engine/config/source.h"

namespace meshwright::config {

// Of a configuration whose tables have been read. All problems go to `diagnostics`, each at the
// place where its key was written; fills `config.shared`, and sets step_scheduler.max_steps to
// "none" where epochs say how long the run is.
void check_between_keys(Config& config, const Source::Impl& source, Diagnostics& diagnostics);

}  // namespace meshwright::config
