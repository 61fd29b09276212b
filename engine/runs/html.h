// Pieces of a page.
#pragma once

#include <cstdarg>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::runs {

// Any bytes as text between tags or in an attribute's double quotes.
std::string escaped(std::string_view text);
// printf into a string; for numbers and short words.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);
// At most four digits: "1.234", "0.0003", "12.3k", "4.5M".
std::string short_number(double value);
// As it is shown beside a curve: bytes as "1.5 GiB".
std::string value_text(double value, bool bytes);
// "A", "B" ... "Z", "AA": how runs are told apart without colours.
std::string letter_of(size_t run);
// Where the lines of a grid lie between two values, at most about `wanted` of them.
std::vector<double> ticks(double least, double most, bool log, bool bytes, size_t wanted = 4);

// Rows of cells that are HTML already; the first is the header. `right`: columns of numbers.
std::string html_table(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<size_t>& right = {}, const char* classes = "");

}  // namespace meshwright::runs
