// A row of metrics.jsonl, for what shows it elsewhere: files for other programs, monitors.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string_view>

namespace meshwright::monitor {

struct Row {
  int64_t completed = 0;       // steps
  boost::json::object fields;  // all of them: "step" and "completed_steps" too
  bool is_step() const { return fields.contains("loss"); }
};

// Nothing: this is no row. A newline at the end does not matter.
std::optional<Row> parse_row(std::string_view line);

// A number; NaN for null, which stands for one that was not finite; the largest of a list. Nothing:
// it is neither.
std::optional<double> number_of(const boost::json::value& value);

// Whether the field says which row it is, not what was measured.
inline bool counts_rows(std::string_view name) {
  return name == "step" || name == "completed_steps";
}

}  // namespace meshwright::monitor
