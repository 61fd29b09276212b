#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "meshwright/error.h"
#include "sdk/base/plain_text.h"
#include "sdk/text/chat/value.h"

namespace meshwright::chat {

namespace {

namespace json = boost::json;
using boost::system::error_code;

constexpr size_t kDeepest = 200;

bool is_real_number(std::string_view text) {
  return text.find_first_of(".eE") != std::string_view::npos;
}

Value number_of(const std::string& text) {
  if (is_real_number(text)) {
    double value = 0;
    auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    // Too large or too small: infinity or zero, as in Python.
    if (failed == std::errc::result_out_of_range) value = text::read_real(text.c_str());
    return Value::real(value);
  }
  int64_t value = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failed == std::errc() ? Value::integer(value) : Value::big_integer(text);
}

// Builds a Value; numbers are read from their text, which Boost's value does not keep.
struct Builder {
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max(),
                          max_array_size = std::numeric_limits<size_t>::max(),
                          max_key_size = std::numeric_limits<size_t>::max(),
                          max_string_size = std::numeric_limits<size_t>::max();

  Value done;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    open_.emplace_back();
    return true;
  }
  bool on_object_end(size_t, error_code&) {
    Open last = std::move(open_.back());
    open_.pop_back();
    return put(Value::dict(std::move(last.members)));
  }
  bool on_array_begin(error_code&) {
    open_.emplace_back().is_list = true;
    return true;
  }
  bool on_array_end(size_t, error_code&) {
    Open last = std::move(open_.back());
    open_.pop_back();
    return put(Value::list(std::move(last.items)));
  }
  bool on_key_part(json::string_view part, size_t, error_code&) { return more(part); }
  bool on_key(json::string_view part, size_t, error_code&) {
    more(part);
    open_.back().key = std::move(text_);
    text_.clear();
    return true;
  }
  bool on_string_part(json::string_view part, size_t, error_code&) { return more(part); }
  bool on_string(json::string_view part, size_t, error_code&) {
    more(part);
    Value value = Value::string(std::move(text_));
    text_.clear();
    return put(std::move(value));
  }
  bool on_number_part(json::string_view part, error_code&) { return more(part); }
  bool on_int64(int64_t, json::string_view part, error_code&) { return number(part); }
  bool on_uint64(uint64_t, json::string_view part, error_code&) { return number(part); }
  bool on_double(double, json::string_view part, error_code&) { return number(part); }
  bool on_bool(bool value, error_code&) { return put(Value::boolean(value)); }
  bool on_null(error_code&) { return put(Value()); }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  struct Open {
    bool is_list = false;
    std::string key;
    Value::Dict members;
    Value::List items;
  };
  bool more(json::string_view part) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool number(json::string_view part) {
    more(part);
    Value value = number_of(text_);
    text_.clear();
    return put(std::move(value));
  }
  bool put(Value value) {
    if (open_.empty())
      done = std::move(value);
    else if (open_.back().is_list)
      open_.back().items.push_back(std::move(value));
    else
      open_.back().members.emplace_back(std::move(open_.back().key), std::move(value));
    return true;
  }
  std::vector<Open> open_;
  std::string text_;
};

// Where the first half of a surrogate pair stands that has no other; text.size(): nowhere.
size_t lone_surrogate(std::string_view text) {
  auto escaped = [&](size_t at) {
    unsigned code = 0;
    if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return code;
    const char* const end = text.data() + at + 6;
    return std::from_chars(text.data() + at + 2, end, code, 16).ptr == end ? code : 0;
  };
  auto is_first = [](unsigned code) { return code >= 0xD800 && code < 0xDC00; };
  auto is_second = [](unsigned code) { return code >= 0xDC00 && code < 0xE000; };
  for (size_t at = text.find('\\'); at < text.size(); at = text.find('\\', at)) {
    const unsigned code = escaped(at);
    if (is_second(code) || (is_first(code) && !is_second(escaped(at + 6)))) return at;
    at += is_first(code) ? 12 : 2;
  }
  return text.size();
}

// What people and other languages write that is not JSON, where the parser stopped; else its words.
std::string wrong_at(std::string_view text, size_t at, const std::string& otherwise) {
  at = std::min(at, text.size());
  const std::string_view rest = text.substr(at);
  for (std::string_view word : {"NaN", "Infinity", "-Infinity"})
    if (rest.starts_with(word))
      return std::string(word) + " is no number of JSON; write null, or a string, in its place";
  for (std::string_view word : {"True", "False", "None"})
    if (rest.starts_with(word))
      return std::string(word) + " is Python's; JSON has true, false and null";
  if (rest.starts_with('\'')) return "strings and keys stand in double quotes, and not in '";
  if (rest.starts_with('}') || rest.starts_with(']'))
    if (const size_t before = text.substr(0, at).find_last_not_of(" \t\r\n");
        before != std::string_view::npos && text[before] == ',')
      return std::string("a comma stands before ") + rest[0] + ", with nothing behind it";
  // The parser stops at most behind what should have been the other half.
  if (const size_t lone = lone_surrogate(text); lone < text.size() && lone <= at && at <= lone + 12)
    return "half of a surrogate pair: " + std::string(text.substr(lone, 6));
  return otherwise;
}

}  // namespace

Value parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kDeepest;
  json::basic_parser<Builder> parser(options);
  error_code failed;
  size_t read = parser.write_some(false, text.data(), text.size(), failed);
  while (!failed && read < text.size() &&
         (text[read] == ' ' || text[read] == '\n' || text[read] == '\r' || text[read] == '\t'))
    ++read;
  if (!failed && read < text.size()) failed = json::error::extra_data;
  if (failed) {
    std::string_view before = text.substr(0, std::min(read, text.size()));
    size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    size_t column = before.size() - (before.rfind('\n') + 1) + 1;
    throw Error(ErrorCode::bad_dataset,
                std::to_string(line) + ":" + std::to_string(column) +
                    ": not valid JSON: " + wrong_at(text, read, failed.message()));
  }
  return std::move(parser.handler().done);
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  auto [end, failed] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string text(buffer, end);
  size_t e = text.find('e');
  int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return text;  // "1e-05": two digits at least, as C has it
  bool negative = text[0] == '-';
  std::string digits;
  for (char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  std::string out = negative ? "-" : "";
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  out += digits.substr(0, whole) + ".";
  return out + (digits.size() > whole ? digits.substr(whole) : "0");
}

}  // namespace meshwright::chat
