// str.format() and "..." % values.
#include <algorithm>
#include <array>
#include <charconv>

#include "sdk/base/plain_text.h"
#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

// [[fill]align][sign][0][width][,][.precision][type], as far as it means something for strings,
// integers and floats.
void Renderer::formatted(const Datum& value, std::string_view spec, Writer& out) {
  if (spec.empty()) return print(value, out, 0);
  std::string_view all = spec;
  std::string_view fill = " ";
  char align = 0, sign = '-', type = 0;
  auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t first = unicode::decode(spec, 0).size;
  if (spec.size() > first && is_align(spec[first])) {
    fill = spec.substr(0, first);
    align = spec[first];
    spec.remove_prefix(first + 1);
  } else if (is_align(spec[0])) {
    align = spec[0];
    spec.remove_prefix(1);
  }
  auto refuse = [&] { fail("the format '" + std::string(all) + "' is not supported here"); };
  auto number = [&]() -> int {
    int out_number = -1;
    auto [end, failed] = std::from_chars(spec.data(), spec.data() + spec.size(), out_number);
    if (failed == std::errc::result_out_of_range) refuse();
    spec.remove_prefix(static_cast<size_t>(end - spec.data()));
    return out_number;
  };
  if (!spec.empty() && (spec[0] == '+' || spec[0] == '-' || spec[0] == ' ')) {
    sign = spec[0];
    spec.remove_prefix(1);
  }
  if (spec.starts_with('0') && align == 0) {
    fill = "0";
    align = '=';
  }
  int width = spec.empty() || spec[0] < '0' || spec[0] > '9' ? 0 : number();
  int precision = -1;
  if (spec.starts_with('.')) {
    spec.remove_prefix(1);
    precision = number();
    if (precision < 0) refuse();
  }
  if (spec.size() == 1)
    type = spec[0];
  else if (!spec.empty())
    refuse();
  constexpr int kWidest = 100000, kMostDigits = 300;
  if (width > kWidest) refuse();
  Datum body;
  if (value.is_string()) {
    if ((type != 0 && type != 's') || align == '=' || sign != '-') refuse();
    body = value;
    if (precision >= 0)
      body = cut(value, 0, unicode::offset(value.view(), static_cast<size_t>(precision)));
    if (align == 0) align = '<';
  } else if (is_number(value)) {
    std::string text;
    bool whole = value.kind != Kind::real;
    if (whole && (type == 0 || type == 'd')) {
      if (precision >= 0) refuse();
      text = value.kind == Kind::boolean ? (value.truth ? "1" : "0") : number_text(value);
    } else if (type == 'f' || type == 'e' || type == 'g' || type == '%') {
      if (precision > kMostDigits) refuse();
      double real = real_of(value) * (type == '%' ? 100 : 1);
      const std::array<char, 6> how{'%', '.', '*', type == '%' ? 'f' : type, '\0'};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
      text = text::format(how.data(), precision < 0 ? 6 : precision, real);
#pragma GCC diagnostic pop
      if (type == '%') text += '%';
    } else if (!whole && type == 0 && precision < 0) {
      text = number_text(value);
    } else {
      refuse();
    }
    if (sign != '-' && !text.starts_with('-')) text.insert(0, 1, sign);
    bool signed_text = text.starts_with('-') || text.starts_with('+') || text.starts_with(' ');
    if (align == '=') {
      size_t lacking =
          text.size() < static_cast<size_t>(width) ? static_cast<size_t>(width) - text.size() : 0;
      std::string zeros;
      for (size_t i = 0; i < lacking; ++i) zeros += fill;
      text.insert(signed_text ? 1 : 0, zeros);
    }
    body = copied(text, value.message);
    if (align == 0 || align == '=') align = '>';
  } else {
    fail("unsupported format string passed to " + std::string(type_name(value.kind)) +
         ".__format__");
  }
  size_t length = unicode::length(body.view());
  size_t lacking = length < static_cast<size_t>(width) ? static_cast<size_t>(width) - length : 0;
  size_t before = align == '>' ? lacking : align == '^' ? lacking / 2 : 0;
  for (size_t i = 0; i < before; ++i) out.write(fill, kNoMessage, 0);
  out.write(body, 0);
  for (size_t i = before; i < lacking; ++i) out.write(fill, kNoMessage, 0);
}

// What a Markup is formatted with is escaped.
Datum Renderer::format(const Datum& self, const Arguments& given) {
  std::string_view text = self.view();
  spend(text.size());
  Writer out;
  size_t next = 0;
  bool automatic = false, manual = false;
  for (size_t at = 0; at < text.size();) {
    char c = text[at];
    if (c != '{' && c != '}') {
      size_t end = std::min(text.find_first_of("{}", at), text.size());
      out.write(self, at, end, 0);
      at = end;
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == c) {
      out.write(self, at, at + 1, 0);
      at += 2;
      continue;
    }
    if (c == '}') fail("Single '}' encountered in format string");
    size_t close = text.find_first_of("{}", at + 1);
    if (close == std::string_view::npos) fail("expected '}' before end of string");
    if (text[close] == '{') fail("a field inside a format is not supported");
    std::string_view field = text.substr(at + 1, close - at - 1), spec;
    at = close + 1;
    if (size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    bool represented = field.ends_with("!r");
    if (represented || field.ends_with("!s")) field.remove_suffix(2);
    size_t stop = field.find_first_of(".[");
    std::string_view name = field.substr(0, stop), rest = field.substr(name.size());
    Datum value;
    size_t index = 0;
    auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), index);
    bool is_number = !name.empty() && failed == std::errc() && end == name.data() + name.size();
    if (name.empty()) {
      index = next++;
      automatic = true;
    } else if (is_number) {
      manual = true;
    }
    if (automatic && manual)
      fail("cannot switch between automatic field numbering and manual field specification");
    if (name.empty() || is_number) {
      if (index >= given.count)
        fail("Replacement index " + std::to_string(index) +
             " out of range for positional args tuple");
      value = given.list[index];
    } else {
      const auto* keyword =
          std::find_if(given.keywords, given.keywords + given.named,
                       [&](const Arguments::Keyword& one) { return one.name == name; });
      if (keyword == given.keywords + given.named) fail("no argument '" + std::string(name) + "'");
      value = keyword->value;
    }
    while (!rest.empty()) {
      bool dot = rest[0] == '.';
      size_t stop_at = dot ? std::min(rest.find_first_of(".[", 1), rest.size()) : rest.find(']');
      if (stop_at == std::string_view::npos || stop_at <= 1)
        fail("a field of a format is not closed");
      Datum key = copied(rest.substr(1, stop_at - 1));
      value = dot ? attribute(value, key.view()) : path(value, key);
      if (value.is_undefined()) fail_undefined(value);
      rest.remove_prefix(dot ? stop_at : stop_at + 1);
    }
    if (represented) {
      Writer inner;
      represent(value, inner);
      value = text_of(inner);
    } else if (text.substr(0, at).ends_with("!s}")) {
      value = as_text(value);
    }
    if (!self.marked) {
      formatted(value, spec, out);
    } else if (value.is_markup()) {
      if (!spec.empty()) fail("Unsupported format specification for Markup.");
      out.write(value, 0);
    } else {
      Writer inner;
      formatted(value, spec, inner);
      out.write(escape(text_of(inner)), 0);
    }
    check_size(out.text.size());
  }
  return marked(text_of(out), self.marked);
}

Datum Renderer::percent(const Datum& format, const Arguments& given) {
  std::string_view text = format.view();
  spend(text.size());
  Writer out;
  size_t next = 0;
  bool mapping = given.named > 0 || (given.count == 1 && given.list[0].kind == Kind::dict);
  bool used_mapping = false;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '%') {
      size_t end = std::min(text.find('%', at), text.size());
      out.write(format, at, end, 0);
      at = end;
      continue;
    }
    if (++at >= text.size()) fail("incomplete format");
    if (text[at] == '%') {
      out.write(format, at, at + 1, 0);
      ++at;
      continue;
    }
    Datum value;
    if (text[at] == '(') {
      size_t close = text.find(')', at);
      if (close == std::string_view::npos || !mapping) fail("format requires a mapping");
      std::string_view key = text.substr(at + 1, close - at - 1);
      at = close + 1;
      used_mapping = true;
      const Datum* found = nullptr;
      for (size_t i = 0; i < given.named; ++i)
        if (given.keywords[i].name == key) found = &given.keywords[i].value;
      if (given.named == 0) found = find(given.list[0], key);
      if (found == nullptr) fail("no argument '" + std::string(key) + "'");
      value = *found;
    } else {
      if (next >= given.count) fail("not enough arguments for format string");
    }
    size_t end = at;
    while (end < text.size() &&
           std::string_view("0123456789.-+ ").find(text[end]) != std::string_view::npos)
      ++end;
    if (end >= text.size()) fail("incomplete format");
    std::string spec(text.substr(at, end - at));
    char type = text[end];
    at = end + 1;
    if (!used_mapping) value = given.list[next++];
    bool left = spec.starts_with('-');
    if (left) spec.erase(0, 1);
    if (type == 's' || type == 'r') {
      if (type == 'r') {
        Writer inner;
        represent(value, inner);
        value = text_of(inner);
      }
      value = as_text(format.marked ? escape(value) : value);
    } else if (type == 'd' || type == 'i' || type == 'f') {
      if (!is_number(value))
        fail(std::string("%") + type + " format: a real number is required, not " +
             std::string(type_name(value.kind)));
      if (type != 'f' && value.kind == Kind::real) value = to_int(value, {});
      if (value.kind == Kind::boolean) value.kind = Kind::integer, value.integer = value.truth;
      spec += type == 'f' ? 'f' : 'd';
    } else {
      fail(std::string("unsupported format character '") + type + "'");
    }
    if (left)
      spec.insert(0, 1, '<');
    else if (!spec.empty() && value.is_string())
      spec.insert(0, 1, '>');
    formatted(value, spec, out);
    check_size(out.text.size());
  }
  if (next < given.count && !mapping) fail("not all arguments converted during string formatting");
  return marked(text_of(out), format.marked);
}

}  // namespace meshwright::chat
