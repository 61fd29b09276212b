#include "apps/observe/monitors/row.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <limits>

namespace meshwright::monitor {

namespace json = boost::json;

std::optional<Row> parse_row(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  boost::system::error_code failed;
  json::value value = json::parse(line, failed);
  if (failed || !value.is_object()) return std::nullopt;
  Row out{.completed = 0, .fields = std::move(value.as_object())};
  // Rows of the first versions have no completed_steps.
  const json::value* step = out.fields.if_contains("step");
  if (step == nullptr || !step->is_int64() || step->as_int64() < 0) return std::nullopt;
  out.completed = step->as_int64() + 1;
  return out;
}

std::optional<double> number_of(const json::value& value) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (value.is_number()) return value.to_number<double>();
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty()) return std::nullopt;
  double out = -std::numeric_limits<double>::infinity();
  for (const json::value& item : *list) {
    if (!item.is_number()) return std::nullopt;
    out = std::max(out, item.to_number<double>());
  }
  return out;
}

}  // namespace meshwright::monitor
