// Pieces of a page.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/base/plain_text.h"

namespace meshwright::runs {

// Any bytes as text between tags or in an attribute's double quotes.
std::string escaped(std::string_view text);
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

// A piece of HTML. Text is escaped as it becomes one, so that what a file of a run says is never
// markup; markup is what this program has put together.
class Html {
 public:
  Html(const std::string& text) : html_(escaped(text)) {}  // NOLINT(google-explicit-constructor)
  Html(const char* text) : html_(escaped(text)) {}         // NOLINT(google-explicit-constructor)
  Html() = default;
  static Html markup(std::string html) {
    Html out;
    out.html_ = std::move(html);
    return out;
  }
  const std::string& html() const { return html_; }
  bool empty() const { return html_.empty(); }

 private:
  std::string html_;
};
using HtmlRows = std::vector<std::vector<Html>>;

// The first row is the header. `right`: columns of numbers.
std::string html_table(const HtmlRows& rows, const std::vector<size_t>& right = {},
                       const char* classes = "");

}  // namespace meshwright::runs
