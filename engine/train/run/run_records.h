// The files of a run's folder that say what was run: config.toml, config.resolved.toml, plan.json
// and env.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/differences.h"
#include "engine/train/run/monitors.h"
#include "engine/train/run/prediction_error.h"
#include "engine/train/run/reporter.h"
#include "engine/train/run/run.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// "continues with optimizer.lr = 0.0005 (was 0.001), ...": what differs from the configuration that
// the folder's run had until now, but for the keys `without`; empty: nothing, or it is not known.
std::string changed_settings(const std::filesystem::path& folder, const Job& job,
                             const std::vector<std::string>& without);

// What [report] asks for. `completed`: steps that the run continues behind; nothing: a new one.
MonitorSettings monitor_settings(const Job& job, Trainer& trainer,
                                 std::optional<int64_t> completed);

// Does nothing on ranks other than 0. Throws Error(output_unwritable).
void write_records(const Reporter& reporter, const RunOptions& options, const Job& job,
                   Trainer& trainer, const PredictionError& prediction_error);
// What plan.json says: the plan, what was predicted and, at a run's end, what it took.
std::string plan_text(Trainer& trainer, const PredictionError& prediction_error);

}  // namespace meshwright::train
