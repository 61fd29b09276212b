// What a run's plan, trace and experts look like, as inline SVG. All read JSON that a run has
// written and throw std::exception where it is not what a run writes.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "apps/observe/report/run_record.h"

namespace meshwright::runs {

// Ranks in frames: the two innermost axes as a grid, one frame for each place of those outside.
// Empty: one rank alone.
std::string mesh_picture(const boost::json::object& plan);
// Which rank has which stages, and when each of them computes what. Empty: no pipeline.
std::string pipeline_picture(const boost::json::object& plan);
// What a rank holds at its fullest moment, by kind, beside what was measured (0: unknown). Empty:
// the plan does not say.
std::string memory_picture(const boost::json::object& plan, double measured);
// A bar a rank: computation, computation beside messages, waiting, the rest. At most `most` ranks.
std::string times_picture(const std::vector<RankTimes>& times, size_t most = 16);
// How many tokens reached each expert of each block, beside the mean. Empty: no experts.
std::string experts_picture(const boost::json::object& load);

// Computation 52.1% and so on, of all ranks together: for the texts beside the picture.
struct TimeParts {
  double computing = 0, overlapped = 0, waiting = 0, rest = 0;  // of 1
  double hidden = 0;   // of the time in which messages were under way, 1 = all of it
  double step_us = 0;  // of a step, mean; 0: no step is in the traces
};
TimeParts parts_of(const std::vector<RankTimes>& times);

}  // namespace meshwright::runs
