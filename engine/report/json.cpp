#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "engine/report/report.h"

namespace meshwright::report {
namespace {

namespace json = boost::json;

constexpr size_t kLine = 120;

bool is_scalar(const json::value& value) { return !value.is_object() && !value.is_array(); }

std::string one_line(const json::value& value) {
  if (const json::array* array = value.if_array()) {
    std::string out = "[";
    for (const json::value& item : *array) out += (out.size() > 1 ? ", " : "") + one_line(item);
    return out + "]";
  }
  if (const json::object* object = value.if_object()) {
    std::string out = "{";
    for (const auto& [key, item] : *object)
      out +=
          (out.size() > 1 ? ", " : "") + json::serialize(json::string(key)) + ": " + one_line(item);
    return out + "}";
  }
  return json::serialize(value);
}

bool add_if_short(const json::value& value, size_t indent, std::string& out) {
  std::string line = one_line(value);
  if (line.size() + indent > kLine) return false;
  out += line;
  return true;
}

// Short values stay on one line; a list of rows has one row a line.
void print(const json::value& value, size_t indent, std::string& out) {
  std::string inner(indent + 2, ' ');
  if (const json::array* array = value.if_array()) {
    bool flat = std::all_of(array->begin(), array->end(), is_scalar);
    if (flat && add_if_short(value, indent, out)) return;
    out += "[";
    size_t column = kLine;
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += ',';
      const json::value& item = (*array)[i];
      std::string line = flat ? one_line(item) : std::string();
      if (flat && column + line.size() + 2 <= kLine) {
        out += ' ' + line;
        column += line.size() + 2;
      } else {
        out += '\n' + inner;
        column = inner.size() + line.size() + 1;
        flat ? void(out += line) : print(item, indent + 2, out);
      }
    }
    out += '\n' + std::string(indent, ' ') + ']';
  } else if (const json::object* object = value.if_object()) {
    if (object->empty()) {
      out += "{}";
      return;
    }
    if (indent > 0 && object->size() <= 12 && add_if_short(value, indent, out)) return;
    out += "{";
    bool first = true;
    for (const auto& [key, item] : *object) {
      out += (first ? "\n" : ",\n") + inner + json::serialize(json::string(key)) + ": ";
      print(item, indent + 2, out);
      first = false;
    }
    out += '\n' + std::string(indent, ' ') + '}';
  } else {
    out += json::serialize(value);
  }
}

}  // namespace

std::string pretty_json(const json::value& value) {
  std::string out;
  print(value, 0, out);
  return out + '\n';
}

}  // namespace meshwright::report
