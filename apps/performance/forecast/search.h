// The best layouts of a job on a machine: what strategies there are is asked of their own plans.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/performance/forecast/forecast.h"
#include "apps/performance/steptime/search.h"

namespace meshwright::forecast {

// The job once more, with settings beside its own as --set takes them; nullopt: there is no such
// job, and `problems` say why.
using Reload = std::function<std::optional<plan::Job>(const std::vector<std::string>& settings,
                                                      Diagnostics& problems)>;

struct Wanted {
  int64_t world_size = 1;
  std::optional<int64_t> global_batch;   // else the job's
  std::optional<double> max_memory;      // bytes of a rank; else what the machine has
  std::map<std::string, int64_t> fixed;  // see steptime::SearchRequest
  size_t most = 5;                       // layouts in the answer

  std::set<std::string> free = {};      // options that are tried though the file sets them
  std::optional<std::string> why = {};  // a layout to tell of, in words of the table
  Reload reload = {};                   // must be given: layouts are planned before they are shown
  bool beside_sets = false;             // the job has settings that its file has not
};

// Of a layout that is asked about.
struct Why {
  std::string asked;
  // Its best way; where all need too much memory, the one that needs least; nullopt: there is none.
  std::optional<steptime::Layout> layout;
  std::optional<Forecast> forecast;  // of that, as its plan says, and its --set line
  std::string set;
  std::optional<Error> refused;  // why it cannot be
  bool listed = false;           // in `best`
  size_t before = 0;             // of `best`, those that rank before it, where it can be
};

// Sizes that no way of a layout makes fit.
struct RefusedFamily {
  steptime::Layout smallest;
  std::string fits_with;  // "pp 2": one size more that does, by the model; empty: none
};

// One constant of the machine that, off by `factor`, puts another layout before the first.
struct Crossover {
  std::vector<std::string> figures;  // of the machine file, all times the factor: "network.nic"
  double factor = 1;                 // 1/2 to 2; of all layouts the nearest
  std::string name, off;             // "the network between hosts", "12% slower"
  size_t first = 2;                  // the layout that is first then, by its place now
};

struct Found {
  std::vector<Forecast> forecasts;  // of the layouts below, in their order, as their plans say
  // `best` are those of the model that can be planned and fit, ranked by their plans' seconds and
  // memory; `smallest` is by its plan where it has one.
  steptime::SearchResult result;
  std::vector<std::string> sets;        // the --set line of each
  double memory = 0;                    // bytes that a rank may take
  std::optional<double> least;          // bytes of the smallest layout that was planned
  std::optional<Error> refused;         // the first plan that could not be made
  std::vector<RefusedFamily> families;  // those that would be fastest, by the model
  std::optional<Why> why;
  // Nearest first; empty: no constant does so within 1/2 and 2, or there is one layout.
  std::vector<Crossover> crossovers;
  bool beside_sets = false;  // the lines need those that were wanted beside them
};

// The model ranks all layouts (steptime::search); the first of them are planned as `plan` with
// their line would, and what is told is what these plans say. Throws Error(missing_key) for a job
// without model or length, Error(memory_exceeded) when no layout fits, another one of 3xx when
// sizes, model and batch leave none, Error(usage) for words of `why` and keys of `free` that are
// none, and what their plans throw when none can be made.
Found search(plan::Job& job, const steptime::Machine& machine, const Wanted& wanted);

std::string draw(const report::Style& style, const Found& found);
boost::json::object to_json(const Found& found);

}  // namespace meshwright::forecast
