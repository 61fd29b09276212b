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
    fail("unsupported format string passed to " + type_name(value.kind) + ".__format__");
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
             type_name(value.kind));
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

std::string Renderer::number_text(const Datum& value) const {
  switch (value.kind) {
    case Kind::boolean:
      return value.truth ? "True" : "False";
    case Kind::integer:
      return std::to_string(value.integer);
    case Kind::real:
      return python_float(value.real);
    default:
      return std::string(value.view());
  }
}

// Python's str().
void Renderer::print(const Datum& value, Writer& out, uint32_t generation) {
  switch (value.kind) {
    case Kind::string:
      out.write(value, generation);
      return;
    case Kind::undefined:
    case Kind::missing:
      return;
    case Kind::none:
      out.write("None", value.message, generation);
      return;
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
    case Kind::big:
      out.write(number_text(value), value.message, generation);
      return;
    default:
      break;
  }
  Writer inner;
  represent(value, inner);
  out.write(text_of(inner), generation);
}

namespace {

// A string as Python writes it in a list.
void quote(const Datum& value, Writer& out) {
  std::string_view text = value.view();
  bool single = text.find('\'') != std::string_view::npos,
       both = text.find('"') != std::string_view::npos;
  char mark = single && !both ? '"' : '\'';
  Origins origins(value);
  std::string piece(1, mark);
  out.write(piece, value.mixed ? kNoMessage : value.message, 0);
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = unicode::decode(text, at);
    Run from = origins.at(at);
    const size_t blank = code < 0x80 ? std::string_view("\n\r\t").find(static_cast<char>(code))
                                     : std::string_view::npos;
    if (code == static_cast<unsigned char>(mark) || code == '\\')
      piece = {'\\', static_cast<char>(code)};
    else if (blank != std::string_view::npos)
      piece = {'\\', "nrt"[blank]};
    else if (code == ' ' || unicode::is_printable(code))
      piece = text.substr(at, size);
    else
      piece = text::format(code < 0x100     ? "\\x%02x"
                           : code < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                           static_cast<unsigned>(code));
    out.write(piece, from.message, from.generation);
    at += size;
  }
  out.write(std::string(1, mark), value.mixed ? kNoMessage : value.message, 0);
}

}  // namespace

// Python's repr().
void Renderer::represent(const Datum& value, Writer& out, int depth) {
  if (depth > kDeepestValue) fail("a value is nested too deeply");
  check_size(out.text.size());
  spend(1);
  auto put = [&](std::string_view text) { out.write(text, value.message, 0); };
  auto sequence = [&](std::string_view open, std::string_view close) {
    put(open);
    for (uint32_t i = 0; i < value.size; ++i) {
      if (i > 0) put(", ");
      represent(value.items[i], out, depth + 1);
    }
    put(close);
  };
  auto mapping = [&](std::string_view open, const Datum* entries, size_t size,
                     std::string_view close) {
    put(open);
    for (size_t i = 0; i < 2 * size; ++i) {
      if (i > 0) put(i % 2 == 0 ? ", " : ": ");
      represent(entries[i], out, depth + 1);
    }
    put(close);
  };
  switch (value.kind) {
    case Kind::undefined:
    case Kind::missing:
      return put("Undefined");
    case Kind::none:
      return put("None");
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
    case Kind::big:
      return put(number_text(value));
    case Kind::string:
      spend(value.size);
      if (value.marked) put("Markup(");
      quote(value, out);
      return value.marked ? put(")") : void();
    case Kind::range:
      put("range(" + number_text(value.items[-3]) + ", " + number_text(value.items[-2]));
      if (value.items[-1].integer != 1) put(", " + number_text(value.items[-1]));
      return put(")");
    case Kind::list:
      return sequence("[", "]");
    case Kind::tuple:
      return sequence("(", value.size == 1 ? ",)" : ")");
    case Kind::view:
      return sequence(view_name(value) + "([", "])");
    case Kind::dict:
      return mapping("{", value.items, value.size, "}");
    case Kind::space:
      return mapping("<Namespace {", value.space->entries, value.space->count, "}>");
    case Kind::iterator:
      return put("<generator object>");
    case Kind::loop:
      return put("<LoopContext " + std::to_string(value.loop->index0 + 1) + "/" +
                 std::to_string(length(value)) + ">");
    case Kind::callable:
      return put("<function " + std::string(value.callable->name) + ">");
  }
}

Datum Renderer::as_text(const Datum& value) {
  if (value.is_string()) return marked(value, false);
  Writer out;
  print(value, out, 0);
  return text_of(out);
}

std::string Renderer::plain(const Datum& value) { return std::string(as_text(value).view()); }

}  // namespace meshwright::chat
