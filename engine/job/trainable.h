// What trains: one question for `plan`, `validate` and `train`.
#pragma once

#include <boost/json/object.hpp>
#include <vector>

#include "engine/config/config.h"
#include "engine/job/plan.h"

namespace meshwright::plan {

// All that `train` would refuse of a job before it starts a rank: what check_trainable() and
// check_exports() add and check_runs() throws. An error of ErrorCode::missing_key is something that
// the file does not say yet. `plan` is nullptr where none could be made.
std::vector<Error> errors_of_training(const Job& job, const JobPlan* plan);
// Whether somebody who wrote this file means to train with it: it has keys that a plan has no use
// for.
bool written_for_training(const Job& job);
// Adds what `plan --json` says of it: "trains", and "why" not.
void add_training(boost::json::object& plan, const std::vector<Error>& errors);

// Where a run puts what checkpoint.export asks for.

// In the run's folder. The adapters have the second where the whole model has the first.
inline constexpr const char *kExportFolder = "hf", *kAdapterExportFolder = "hf_adapter";

// Adds Error(output_unwritable) where the run would put an export in the place of the model that it
// begins with (model.pretrained), which its checkpoints may need. Looks at folders, writes nothing.
void check_exports(const config::Config& config, Diagnostics& diagnostics);

}  // namespace meshwright::plan
