// The files of a run's folder that say what was run: config.toml, config.resolved.toml, plan.json
// and env.json.
#pragma once

#include "engine/train/reporter.h"
#include "engine/train/run.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// Does nothing on ranks other than 0. Throws Error(output_unwritable).
void write_records(const Reporter& reporter, const RunOptions& options, const Job& job,
                   Trainer& trainer);

}  // namespace meshwright::train
