// What can be found wrong before any rank starts: `validate` says it, and so does `train` first.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace meshwright::before {

// The same job with more overrides; nullopt: there is no such job.
using Reload = std::function<std::optional<plan::Job>(const std::vector<std::string>& sets,
                                                      Diagnostics& problems)>;

// Looks at the data of the job and holds the memory of `local_ranks` ranks against that of this
// host; nullopt: no rank is about to start here, and where they will is not known, so what one rank
// of the plan needs is only said. Reads data, starts nothing.
Diagnostics check_before_start(const Reload& reload, const plan::Job& job,
                               const plan::JobPlan& plan, std::optional<int64_t> local_ranks);

// data::count_samples(). Where the data cannot be read here: why, as a notice.
std::string count_samples(plan::Job& job);

// Of what stands between a job and its training: what the file does not say yet, or what `train`
// refuses.
std::string messages(const std::vector<Error>& obstacles, bool missing);

// plan::make_plan(). What it throws names sizes, a batch or a world that lead to a plan, where one
// of them does so by itself.
plan::JobPlan plan_or_help(const Reload& reload, plan::Job& job, const plan::PlanRequest& request);

struct Verdict {
  std::optional<int64_t> world;     // the ranks that the job fits; nullopt: that is not known
  loader::LoadedStrategy strategy;  // the one that owns the job
  std::string missing;              // what train needs beyond this; of a file for planning alone
  std::vector<Error> obstacles;     // none: it passes
  Diagnostics said;
};
// `given`: the number of ranks, where it is known. Throws Error when there is no plan.
Verdict validate(const Reload& reload, plan::Job& job, std::optional<int64_t> given);

// `plan --json`.
boost::json::object plan_json(const plan::Job& job, const plan::JobPlan& plan);

}  // namespace meshwright::before
