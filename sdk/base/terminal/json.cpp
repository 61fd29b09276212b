#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "sdk/base/terminal/report.h"

namespace meshwright::report {
namespace {

namespace json = boost::json;

constexpr size_t kLine = 120;

bool is_scalar(const json::value& value) { return !value.is_object() && !value.is_array(); }

// JSON leaves some characters as they are that a terminal acts on: they stand as \u.... with the
// same meaning.
std::string text_of(const json::value& value) {
  const std::string text = json::serialize(value);
  if (!value.is_string()) return text;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t i) {
      return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
    };
    unsigned code = 0;
    size_t length = 1;
    if (byte(0) == 0x7f) code = 0x7f;
    if (byte(0) >= 0xc2 && byte(0) < 0xe0)
      length = 2, code = (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    if (byte(0) >= 0xe0 && byte(0) < 0xf0)
      length = 3, code = (byte(0) & 0xf) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    const std::string_view piece = std::string_view(text).substr(at, length);
    if (code >= 0x7f && printable(piece).starts_with('\\')) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
      out += escaped;
    } else {
      out += piece;
    }
    at += length;
  }
  return out;
}

std::string one_line(const json::value& value) {
  if (const json::array* array = value.if_array()) {
    std::string out = "[";
    for (const json::value& item : *array) out += (out.size() > 1 ? ", " : "") + one_line(item);
    return out + "]";
  }
  if (const json::object* object = value.if_object()) {
    std::string out = "{";
    for (const auto& [key, item] : *object)
      out += (out.size() > 1 ? ", " : "") + text_of(json::string(key)) + ": " + one_line(item);
    return out + "}";
  }
  return text_of(value);
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
      out += (first ? "\n" : ",\n") + inner + text_of(json::string(key)) + ": ";
      print(item, indent + 2, out);
      first = false;
    }
    out += '\n' + std::string(indent, ' ') + '}';
  } else {
    out += text_of(value);
  }
}

}  // namespace

std::string pretty_json(const json::value& value) {
  std::string out;
  print(value, 0, out);
  return out + '\n';
}

}  // namespace meshwright::report
