// What trains: one question for `plan`, `validate` and `train`.
#pragma once

#include <boost/json/object.hpp>
#include <vector>

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

}  // namespace meshwright::plan
