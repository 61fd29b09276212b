// How values are written, and the scales that they are drawn on.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sdk/base/plain_text.h"

namespace meshwright::runs {

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

}  // namespace meshwright::runs
