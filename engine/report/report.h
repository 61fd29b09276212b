// How things are shown: colours only on a terminal, aligned tables, errors in the style of rustc, JSON for machines.
#pragma once

#include <boost/json/object.hpp>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::report {

// What the output can show.
struct Style {
  bool colour = false;
  bool unicode = true;
  int width = 80;
};
// Looks at the stream, NO_COLOR, COLUMNS and the locale.
Style style_of(std::FILE* stream);

enum class Tone : uint8_t { plain, bold, dim, red, green, yellow, blue, magenta, cyan };
std::string paint(const Style& style, Tone tone, std::string_view text);
// Columns a UTF-8 text takes on a terminal.
size_t display_width(std::string_view text);

// Rows of cells as aligned columns; the first row is the header. `right`: indices of columns aligned right.
std::string table(const Style& style, const std::vector<std::vector<std::string>>& rows, std::span<const size_t> right = {});

// "error[E0203]: message", then " --> file:line:column" with the source line and a caret, notes, and help lines.
std::string format_error(const Style& style, const Error& error);
// The machine form of design section 5: {"error": {...first...}, "errors": [...]}.
boost::json::object errors_json(std::span<const Error> errors);
std::string pretty_json(const boost::json::value& value);

// 1.5 GiB, 12.0 MiB, 512 B.
std::string human_bytes(int64_t bytes);
// 1,234,567
std::string human_count(int64_t count);

}  // namespace meshwright::report
