// The one file that includes toml++.
// The parser's internal assertions can be reached by broken input, which it then reports like any
// other mistake.
#define TOML_ASSERT(expression) static_cast<void>(0)
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "engine/config/toml_value.h"

namespace meshwright::config {
namespace {

Place place_of(const toml::source_region& region) {
  return {Origin::Source::file, static_cast<int>(region.begin.line),
          static_cast<int>(region.begin.column)};
}

bool before(const Place& a, const Place& b) {
  return a.line != b.line ? a.line < b.line : a.column < b.column;
}

template <class T>
std::string as_written(const T& node) {
  std::ostringstream out;
  out << node;
  return out.str();
}

Value convert(const toml::node& node);

Value without_place(const toml::node& node) {
  if (const auto* b = node.as_boolean()) return boolean_value(b->get());
  if (const auto* i = node.as_integer()) return integer_value(i->get());
  if (const auto* f = node.as_floating_point()) return number_value(f->get());
  if (const auto* s = node.as_string()) return Value(s->get());
  Value value;
  if (const auto* a = node.as_array()) {
    value.kind = Value::Kind::list;
    for (const toml::node& item : *a) value.items.push_back(convert(item));
  } else if (const auto* t = node.as_table()) {
    for (const auto& [key, item] : *t)
      value.entries.push_back({std::string(key.str()), place_of(key.source()), convert(item)});
    // toml++ sorts by name; patterns and errors want the order of the file.
    std::stable_sort(value.entries.begin(), value.entries.end(),
                     [](const Entry& x, const Entry& y) { return before(x.place, y.place); });
  } else {
    value.kind = Value::Kind::date;
    if (const auto* date = node.as_date()) value.text = as_written(*date);
    if (const auto* time = node.as_time()) value.text = as_written(*time);
    if (const auto* both = node.as_date_time()) value.text = as_written(*both);
  }
  return value;
}

Value convert(const toml::node& node) {
  Value value = without_place(node);
  value.place = place_of(node.source());
  return value;
}

}  // namespace

std::optional<Value> parse_toml(std::string_view text, const std::string& file,
                                Diagnostics& diagnostics) {
  if (std::optional<SyntaxProblem> problem = check_limits(text)) {
    diagnostics.add(syntax_error(*problem, text, file));
    return std::nullopt;
  }
  toml::parse_result result = toml::parse(text);
  if (!result) {
    const toml::parse_error& error = result.error();
    diagnostics.add(
        syntax_error({std::string(error.description()), place_of(error.source())}, text, file));
    return std::nullopt;
  }
  return convert(result.table());
}

std::optional<Value> parse_toml_value(std::string_view text, std::string* why) {
  std::string line = "v = " + std::string(text);
  if (std::optional<SyntaxProblem> problem = check_limits(line)) {
    if (why != nullptr) *why = problem->what;
    return std::nullopt;
  }
  toml::parse_result result = toml::parse(line);
  if (!result) {
    if (why != nullptr) *why = std::string(result.error().description());
    return std::nullopt;
  }
  if (result.table().size() != 1) return std::nullopt;  // "1\nx = 2" is not one value
  const toml::node* node = result.table().get("v");
  if (node == nullptr) return std::nullopt;
  return convert(*node);
}

}  // namespace meshwright::config
