#include "sdk/base/files/json_codec.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>
#include <set>
#include <vector>

namespace meshwright {

BOOST_DESCRIBE_STRUCT(Origin, (), (source, file, line, column))

}  // namespace meshwright

namespace meshwright::base {

namespace {

namespace json = boost::json;
using boost::system::error_code;

template <bool bounded>
struct Builder {
  static constexpr size_t most(size_t count) { return bounded ? count : SIZE_MAX; }
  static constexpr size_t max_object_size = most(1 << 20), max_array_size = most(1 << 20),
                          max_key_size = most(4096), max_string_size = most(16 << 20);

  size_t most_elements = SIZE_MAX;
  std::string problem;
  json::value_stack values;

  bool on_document_begin(error_code&) {
    values.reset();
    return true;
  }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(size_t members, error_code&) {
    keys_.pop_back();
    values.push_object(members);
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(size_t elements, error_code& failed) {
    if (elements > most_elements)
      return refuse(failed, "has a list of " + std::to_string(elements) + " values");
    values.push_array(elements);
    return true;
  }
  bool on_key_part(json::string_view part, size_t, error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, error_code& failed) {
    key_.append(part.data(), part.size());
    if (!keys_.back().insert(key_).second) return refuse(failed, "lists \"" + key_ + "\" twice");
    values.push_key(key_);
    key_.clear();
    return true;
  }
  bool on_string_part(json::string_view part, size_t, error_code&) {
    values.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, size_t, error_code&) {
    values.push_string(part);
    return true;
  }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t value, json::string_view, error_code&) {
    values.push_int64(value);
    return true;
  }
  bool on_uint64(uint64_t value, json::string_view, error_code&) {
    values.push_uint64(value);
    return true;
  }
  bool on_double(double value, json::string_view digits, error_code&) {
    // A number beyond all doubles stays as it is.
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    values.push_double(value);
    return true;
  }
  bool on_bool(bool value, error_code&) {
    values.push_bool(value);
    return true;
  }
  bool on_null(error_code&) {
    values.push_null();
    return true;
  }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  bool refuse(error_code& failed, std::string what) {
    problem = std::move(what);
    failed = json::error::exception;
    return false;
  }
  std::vector<std::set<std::string>> keys_;
  std::string key_;
};

template <bool bounded>
json::value parse(std::string_view text, const json::parse_options& options, size_t elements) {
  json::basic_parser<Builder<bounded>> parser(options);
  parser.handler().most_elements = elements;
  error_code failed;
  size_t read = parser.write_some(false, text.data(), text.size(), failed);
  while (!failed && read < text.size() &&
         (text[read] == ' ' || text[read] == '\n' || text[read] == '\r' || text[read] == '\t'))
    ++read;
  if (!failed && read < text.size()) failed = json::error::extra_data;
  if (failed) {
    const std::string& own = parser.handler().problem;
    throw JsonProblem{static_cast<int64_t>(std::min(read, text.size())),
                      own.empty() ? "is not valid JSON: " + failed.message() : own};
  }
  return parser.handler().values.release();
}

}  // namespace

json::value parse_strictly(std::string_view text, const JsonBounds& bounds) {
  json::parse_options options;
  options.max_depth = bounds.depth;
  return parse<true>(text, options, bounds.elements);
}

json::value parse_own(std::string_view text) {
  json::parse_options options;
  options.allow_invalid_utf8 = true;
  return parse<false>(text, options, SIZE_MAX);
}

namespace codec {

namespace {

// "\"files\"[0].\"name\""
std::string text_of(const Place& place) {
  if (place.in == nullptr) return std::string(place.key);
  const std::string outer = place.in->in == nullptr ? "" : text_of(*place.in);
  if (place.key.data() == nullptr) return outer + "[" + std::to_string(place.index) + "]";
  return outer + (outer.empty() ? "\"" : ".\"") + std::string(place.key) + "\"";
}

}  // namespace

void refuse(const Place& place, const std::string& what) {
  throw JsonProblem{0, text_of(place) + " " + what};
}

void refuse_keys(const Place& place, const boost::json::object& object,
                 const std::vector<std::string_view>& known) {
  for (const auto& [key, value] : object)
    if (std::find(known.begin(), known.end(), std::string_view(key)) == known.end())
      refuse(place, "has \"" + std::string(key) + "\", which this version does not know");
  refuse(place, "lists a key twice");
}

double read_double(const boost::json::value& from, const Place& place) {
  if (from.is_number()) return from.to_number<double>();
  double out = 0;
  if (const boost::json::string* digits = from.if_string()) {
    const char* end = digits->data() + digits->size();
    if (const auto read = std::from_chars(digits->data(), end, out);
        read.ec == std::errc() && read.ptr == end)
      return out;
  }
  refuse(place, "needs a number");
}

std::string double_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace codec

namespace {

struct ErrorParts {
  ErrorCode code;
  std::string message, key;
  Origin origin;
  std::vector<std::string> helps, notes;
};
BOOST_DESCRIBE_STRUCT(ErrorParts, (), (code, message, key, origin, helps, notes))

}  // namespace

std::string error_text(const Error& error) {
  return json_text(ErrorParts{error.code(), error.message(), error.key(), error.origin(),
                              error.helps(), error.notes()});
}

std::optional<Error> error_in(const std::string& text) try {
  const auto parts = read_json_text<ErrorParts>(text);
  const auto known = error_catalog();
  if (std::none_of(known.begin(), known.end(),
                   [&](const ErrorInfo& info) { return info.code == parts.code; }))
    return std::nullopt;
  Error error(parts.code, parts.message);
  if (!parts.key.empty()) error.key(parts.key);
  error.at(parts.origin);
  for (const std::string& help : parts.helps) error.help(help);
  for (const std::string& note : parts.notes) error.note(note);
  return error;
} catch (const JsonProblem&) {
  return std::nullopt;
}

}  // namespace meshwright::base
