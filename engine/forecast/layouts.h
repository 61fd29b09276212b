// What a search over layouts asks the strategies, and how layouts are written down. Of this room
// alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/forecast/search.h"

namespace meshwright::forecast {

// A model with its adapters and what is frozen, and in what it is trained.
struct Trained {
  ModelOutline outline;
  Workload work;      // storage and states of the optimizer
  double frozen = 0;  // bytes of a frozen element as it is stored; 0: all train
};
// Throws Error(missing_key) for a job without a model, and what its plan would throw for adapters
// and groups.
Trained trained_model(plan::Job& job);

// Each strategy as the job has it, and as options of its own table that the file leaves open would
// have it; the job's own first.
std::vector<steptime::Way> strategy_ways(plan::Job& job, Trained model);

// What --set takes to make this layout of the job: every setting that says how it is cut, those of
// the file that would say otherwise among them.
std::vector<std::string> settings_of(const plan::Job& job, const steptime::Layout& layout,
                                     double layers, double global_batch);
// "--set a=1 --set b=2"
std::string set_line(const std::vector<std::string>& settings);

// A layout as `plan` with its settings would say it, or why there is no such plan.
struct PlannedLayout {
  std::optional<Forecast> forecast;
  std::optional<Error> refused;
};
PlannedLayout plan_layout(const plan::Job& job, const steptime::Machine& machine,
                          const Reload& reload, int64_t world_size,
                          const std::vector<std::string>& settings);

// What is searched, and the layouts of `request` that are planned: the best of them, fastest first.
// The answer may be empty.
Found planned_layouts(const plan::Job& job, const steptime::Machine& machine, const Wanted& wanted,
                      const steptime::SearchRequest& request);

// Why nothing was found, with what would have to change.
[[noreturn]] void refuse_search(const plan::Job& job, const steptime::Machine& machine,
                                const Wanted& wanted, const steptime::SearchRequest& request,
                                const Found& found);

}  // namespace meshwright::forecast
