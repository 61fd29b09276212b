// What can be found wrong before any rank starts: `validate` says it, and so does `train` first.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/plan.h"
#include "engine/launch/ranks.h"

namespace meshwright::before {

// The same job with more overrides; nullopt: there is no such job.
using Reload = std::function<std::optional<plan::Job>(const std::vector<std::string>& sets,
                                                      Diagnostics& problems)>;
// The same of a job that is made for a number of ranks.
using ReloadFor = std::function<std::optional<plan::Job>(
    int64_t world, const std::vector<std::string>& sets, Diagnostics& problems)>;
// Which rank this process is; nullopt: nobody launched it as one.
using Ranks = std::optional<launch::RankEnvironment>;

// Opens what the run would begin with: the headers of all files of model.pretrained, or the
// checkpoint that it would go on from, and what it is held against there; with `data` those, too,
// which may take preparing.
Diagnostics check_files(const plan::Job& job, const plan::JobPlan& plan, bool data);
// Whether the run's folder can be made, or written to.
Diagnostics check_run_folder(const plan::Job& job);

// Both of these, and holds the memory of `local_ranks` ranks against
// that of this host; nullopt: no rank is about to start here, and where they will is not known, so
// what one rank of the plan needs is only said. Reads data, starts nothing.
Diagnostics check_before_start(const Reload& reload, const plan::Job& job,
                               const plan::JobPlan& plan, std::optional<int64_t> local_ranks);

// data::count_samples(), and of such a run what it has done of them that goes on. Where the data
// cannot be read here: why, as a notice.
std::string count_samples(plan::Job& job);

// Of what stands between a job and its training: what the file does not say yet, or what `train`
// refuses.
std::string messages(const std::vector<Error>& obstacles, bool missing);

// plan::make_plan(). What it throws names sizes, a batch or a world that lead to a plan, where one
// of them does so by itself.
plan::JobPlan plan_or_help(const Reload& reload, plan::Job& job, const plan::PlanRequest& request);

// The plan, before a rank starts, of a job on the launcher's ranks, of which this process is one,
// else on `wanted` ranks that it starts or is. Throws what plan_or_help() throws, in a launcher's
// rank what plan::make_plan() throws: every one asks, and not all are to try what would help.
plan::JobPlan plan_to_start(const Reload& reload, plan::Job& job, const Ranks& ranks,
                            int64_t wanted);
plan::JobPlan plan_to_start(const ReloadFor& reload, plan::Job& job, const Ranks& ranks,
                            int64_t wanted);

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
