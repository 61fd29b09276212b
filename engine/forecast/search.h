// The best layouts of a job on a machine: what strategies there are is asked of their own plans.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/forecast/forecast.h"
#include "engine/steptime/search.h"

namespace meshwright::forecast {

struct Wanted {
  int64_t world_size = 1;
  std::optional<int64_t> global_batch;   // else the job's
  std::optional<double> max_memory;      // bytes of a rank; else what the machine has
  std::map<std::string, int64_t> fixed;  // see steptime::SearchRequest
  size_t most = 5;                       // layouts in the answer
};

struct Found {
  std::vector<Forecast> forecasts;  // of the layouts below, in their order
  steptime::SearchResult result;
  std::vector<std::string> sets;  // the --set line of each
  double memory = 0;              // bytes that a rank may take
};

// Throws Error(missing_key) for a job without model or length, Error(memory_exceeded) when no
// layout fits, Error(conflict) when the fixed sizes leave none.
Found search(plan::Job& job, const steptime::Machine& machine, const Wanted& wanted);

std::string draw(const report::Style& style, const Found& found);
boost::json::object to_json(const Found& found);

}  // namespace meshwright::forecast
