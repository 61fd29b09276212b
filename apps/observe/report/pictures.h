// The pictures of a report's page.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <vector>

#include "apps/observe/report/run_record.h"

namespace meshwright::runs {

// What the page draws of a run's plan, trace and experts. All read JSON that a run has written and
// throw std::exception where it is not what a run writes.

// The mesh, what a rank holds at its fullest moment beside what was measured (0: unknown), which
// rank of a pipeline has which stages and computes what when, and the traffic of a step.
boost::json::object plan_json(const boost::json::object& plan, double measured);
// How one rank spent its time is a row; the words are of all ranks together.
boost::json::object times_json(const std::vector<RankTimes>& times);
// How many tokens reached each expert of each block. Empty: no experts.
boost::json::array experts_json(const boost::json::object& load);

}  // namespace meshwright::runs
