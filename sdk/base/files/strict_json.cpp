#include "sdk/base/files/strict_json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <set>
#include <vector>

namespace meshwright::base {

namespace {

namespace json = boost::json;
using boost::system::error_code;

// Sees the text piece by piece and keeps nothing but the keys of the objects it is in.
struct Inspector {
  static constexpr size_t max_object_size = 1 << 20, max_array_size = 1 << 20, max_key_size = 4096,
                          max_string_size = 16 << 20;

  size_t most_elements = 0;
  std::string problem;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(size_t, error_code&) {
    keys_.pop_back();
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(size_t elements, error_code& failed) {
    return elements <= most_elements ||
           refuse(failed, "has a list of " + std::to_string(elements) + " values");
  }
  bool on_key_part(json::string_view part, size_t, error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, error_code& failed) {
    key_.append(part.data(), part.size());
    bool fresh = keys_.back().insert(key_).second;
    if (!fresh) refuse(failed, "lists \"" + key_ + "\" twice");
    key_.clear();
    return fresh;
  }
  bool on_string_part(json::string_view, size_t, error_code&) { return true; }
  bool on_string(json::string_view, size_t, error_code&) { return true; }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, error_code&) { return true; }
  bool on_double(double, json::string_view, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
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

}  // namespace

json::value parse_strictly(std::string_view text, const JsonBounds& bounds) {
  json::parse_options options;
  options.max_depth = bounds.depth;
  json::basic_parser<Inspector> parser(options);
  parser.handler().most_elements = bounds.elements;
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
  json::value out = json::parse(json::string_view(text.data(), text.size()), failed, {}, options);
  if (failed) throw JsonProblem{0, "is not valid JSON: " + failed.message()};
  return out;
}

}  // namespace meshwright::base
