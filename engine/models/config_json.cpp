#include "engine/models/config_json.h"

#include <algorithm>
#include <boost/json/parser.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>

#include "meshwright/error.h"
#include "sdk/base/plain_text.h"

namespace meshwright::outlines {

ConfigJson ConfigJson::parse(std::string_view text, std::string name) {
  boost::json::parse_options options;
  options.max_depth = 32;
  boost::json::error_code failed;
  boost::json::parser parser({}, options);
  size_t read = parser.write_some(text.data(), text.size(), failed);
  size_t rest = failed ? read : text.find_first_not_of(" \t\r\n", read);
  if (!failed && rest < text.size()) failed = boost::json::error::extra_data;
  if (failed) {
    std::string_view before = text.substr(0, std::min(rest, text.size()));
    auto line = 1 + std::count(before.begin(), before.end(), '\n');
    size_t column = before.size() -
                    (before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1) + 1;
    Error error(ErrorCode::bad_model_config, name + " is not JSON: " + failed.message() +
                                                 " at line " + std::to_string(line) + ", column " +
                                                 std::to_string(column));
    // Python writes these words for numbers that JSON does not have.
    std::string_view word = text.substr(std::min(text.find_last_of(" \t\r\n:,[", rest) + 1, rest));
    for (const char* python : {"Infinity", "-Infinity", "NaN"})
      if (word.starts_with(python))
        error.help(
            std::string(python) +
            " is no number of JSON, though Python writes it: put one in its place (1e308 for "
            "Infinity), or null where the field may be left out");
    throw error.key("model.config");
  }
  boost::json::value value = parser.release();
  if (!value.is_object())
    throw Error(ErrorCode::bad_model_config, name + " holds no JSON object").key("model.config");
  ConfigJson out;
  out.object_ = std::move(value.get_object());
  out.name_ = std::move(name);
  return out;
}

const boost::json::value* ConfigJson::find(std::string_view field) const {
  const boost::json::value* value =
      object_.if_contains(boost::json::string_view(field.data(), field.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

const boost::json::value& ConfigJson::required(std::string_view field) const {
  const boost::json::value* value = find(field);
  if (value == nullptr) fail(field, "is missing");
  return *value;
}

void ConfigJson::fail(std::string_view field, const std::string& what) const {
  throw Error(ErrorCode::bad_model_config, name_ + ": " + std::string(field) + " " + what)
      .key("model.config");
}

bool ConfigJson::is_null(std::string_view field) const {
  const boost::json::value* value =
      object_.if_contains(boost::json::string_view(field.data(), field.size()));
  return value != nullptr && value->is_null();
}

bool ConfigJson::has(std::string_view field) const { return find(field) != nullptr; }

namespace {
std::optional<int64_t> whole(const boost::json::value& value) {
  if (const int64_t* i = value.if_int64()) return *i;
  if (const uint64_t* u = value.if_uint64())
    return *u <= INT64_MAX ? std::optional(static_cast<int64_t>(*u)) : std::nullopt;
  if (const double* d = value.if_double();
      d != nullptr && std::floor(*d) == *d && std::abs(*d) < 1e15)
    return static_cast<int64_t>(*d);
  return std::nullopt;
}

std::string brief(const boost::json::value& value) {
  return boost::json::serialize(value).substr(0, 60);
}

std::string number_text(double value) { return text::format("%g", value); }
}  // namespace

int64_t ConfigJson::integer(std::string_view field, int64_t low, int64_t high,
                            std::optional<int64_t> fallback) const {
  if (fallback && !has(field)) return *fallback;
  const boost::json::value& value = required(field);
  std::optional<int64_t> number = whole(value);
  if (!number) fail(field, "must be a whole number, found " + brief(value));
  if (*number < low || *number > high)
    fail(field, "= " + std::to_string(*number) + " is out of range (" + std::to_string(low) +
                    " to " + std::to_string(high) + ")");
  return *number;
}

double ConfigJson::number(std::string_view field, double low, double high,
                          std::optional<double> fallback) const {
  if (fallback && !has(field)) return *fallback;
  const boost::json::value& value = required(field);
  if (!value.is_number()) fail(field, "must be a number, found " + brief(value));
  double number = value.to_number<double>();
  if (!(number >= low && number <= high))
    fail(field, "= " + brief(value) + " is out of range (" + number_text(low) + " to " +
                    number_text(high) + ")");
  return number;
}

bool ConfigJson::boolean(std::string_view field, bool fallback) const {
  const boost::json::value* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) fail(field, "must be true or false, found " + brief(*value));
  return value->get_bool();
}

std::string ConfigJson::string(std::string_view field, const std::string& fallback) const {
  const boost::json::value* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(field, "must be a string, found " + brief(*value));
  return std::string(value->get_string());
}

std::vector<std::string> ConfigJson::strings(std::string_view field) const {
  std::vector<std::string> out;
  const boost::json::value* value = find(field);
  if (value == nullptr) return out;
  if (!value->is_array()) fail(field, "must be a list of strings");
  for (const boost::json::value& item : value->get_array()) {
    if (!item.is_string()) fail(field, "must be a list of strings");
    out.emplace_back(item.get_string());
  }
  return out;
}

bool ConfigJson::is_list(std::string_view field) const {
  const boost::json::value* value = find(field);
  return value != nullptr && value->is_array();
}

std::vector<int64_t> ConfigJson::integers(std::string_view field, int64_t low, int64_t high) const {
  std::vector<int64_t> out;
  const boost::json::value* value = find(field);
  if (value == nullptr) return out;
  if (!value->is_array()) fail(field, "must be a list of whole numbers");
  for (const boost::json::value& item : value->get_array()) {
    std::optional<int64_t> number = whole(item);
    if (!number || *number < low || *number > high)
      fail(field, "must be a list of whole numbers from " + std::to_string(low) + " to " +
                      std::to_string(high));
    out.push_back(*number);
  }
  return out;
}

std::vector<double> ConfigJson::numbers(std::string_view field, double low, double high) const {
  std::vector<double> out;
  const boost::json::value* value = find(field);
  if (value == nullptr) return out;
  auto refuse = [&] {
    fail(field, "must be a list of numbers from " + number_text(low) + " to " + number_text(high));
  };
  if (!value->is_array()) refuse();
  for (const boost::json::value& item : value->get_array()) {
    double number = item.is_number() ? item.to_number<double>() : low - 1;
    if (!(number >= low && number <= high)) refuse();
    out.push_back(number);
  }
  return out;
}

ConfigJson ConfigJson::object(std::string_view field) const {
  const boost::json::value* value = find(field);
  if (value == nullptr || !value->is_object()) fail(field, "must be an object");
  ConfigJson out;
  out.object_ = value->get_object();
  out.name_ = name_ + ": " + std::string(field);
  return out;
}

}  // namespace meshwright::outlines
