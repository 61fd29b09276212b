// The pictures of a report's page.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/observe/report/run_record.h"
#include "sdk/base/plain_text.h"

namespace meshwright::runs {

// How values are written, and the scales that they are drawn on.

using text::format;
// At most four digits: "1.234", "0.0003", "12.3k", "4.5M".
std::string short_number(double value);
// As it is shown beside a curve: bytes as "1.5 GiB".
std::string value_text(double value, bool bytes);
// "A", "B" ... "Z", "AA": how runs are told apart without colours.
std::string letter_of(size_t run);
// Where the lines of a grid lie between two values, at most about `wanted` of them.
std::vector<double> ticks(double least, double most, bool log, bool bytes, size_t wanted = 4);
// What an axis that is not logarithmic shows of values between two: at least a ten-thousandth of
// their size, so that what differs by rounding alone lies on one line. Equal values stay.
std::pair<double, double> shown_range(double least, double most);
// A value of an axis whose greatest size is `most`, with the digits that tell it from its
// neighbours a `step` away: "2.7327", "200 MiB".
std::string axis_text(double value, double most, double step, bool bytes);

// The pictures of a report's page.

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
