#include <algorithm>
#include <cmath>

#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

struct Renderer::JsonStyle {
  bool indented = false, sort_keys = false, ascii = false;
  std::string indent, between = ", ", after_key = ": ";
};

// json.dumps(value, ensure_ascii=False, ...).
Datum Renderer::tojson(const Datum& value, const Arguments& given) {
  Bound bound = bind("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag(bound[0], false);
  if (bound[1] != nullptr && bound[1]->kind != Kind::none) {
    style.indented = true;
    if (bound[1]->is_string()) {
      style.indent = bound[1]->view();
    } else {
      constexpr int64_t kWidest = 1000;
      int64_t width = whole_of(*bound[1], "the indent of tojson");
      style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(width, 0, kWidest)), ' ');
    }
    style.between = ",";
  }
  if (bound[2] != nullptr && bound[2]->kind != Kind::none) {
    Items parts = need_items(*bound[2]);
    if (parts.size != 2 || !parts.at[0].is_string() || !parts.at[1].is_string())
      fail("the separators of tojson are two strings");
    style.between = parts.at[0].view();
    style.after_key = parts.at[1].view();
  }
  style.sort_keys = flag(bound[3], false);
  Writer out;
  json(value, style, out, 0);
  Datum text = text_of(out);
  if (!text.mixed) return text;
  // The whole of it belongs to the message that its values came from, if it is one.
  const Mixed& parts = *text.parts;
  bool one = std::all_of(parts.runs, parts.runs + parts.count, [&](const Run& run) {
    return run.message == parts.runs[0].message && run.generation == 0;
  });
  return one ? Datum::string(text.view(), parts.runs[0].message) : text;
}

void Renderer::json_string(const Datum& value, bool ascii, Writer& out) {
  std::string_view text = value.view();
  spend(text.size());
  Origins origins(value);
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string piece = "\"";
  int32_t around = value.mixed ? kNoMessage : value.message;
  auto escape = [&](uint32_t unit) {
    piece += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) piece += kHex[(unit >> shift) & 15];
  };
  out.write(piece, around, 0);
  for (size_t at = 0; at < text.size();) {
    // What needs no escape goes in one piece.
    size_t end = at;
    while (end < text.size() && text[end] != '"' && text[end] != '\\' &&
           static_cast<unsigned char>(text[end]) >= 0x20 &&
           (!ascii || static_cast<unsigned char>(text[end]) < 0x7f))
      ++end;
    if (end > at) {
      out.write(value, at, end, 0);
      at = end;
      continue;
    }
    auto [code, size] = unicode::decode(text, at);
    Run from = origins.at(at);
    piece.clear();
    switch (code) {
      case '"':
        piece = "\\\"";
        break;
      case '\\':
        piece = "\\\\";
        break;
      case '\n':
        piece = "\\n";
        break;
      case '\r':
        piece = "\\r";
        break;
      case '\t':
        piece = "\\t";
        break;
      case '\b':
        piece = "\\b";
        break;
      case '\f':
        piece = "\\f";
        break;
      default:
        if (code >= 0x10000) {
          escape(0xd800 + ((code - 0x10000) >> 10));
          escape(0xdc00 + ((code - 0x10000) & 0x3ff));
        } else {
          escape(code);
        }
    }
    out.write(piece, from.message, from.generation);
    at += size;
  }
  out.write("\"", around, 0);
}

void Renderer::json(const Datum& value, const JsonStyle& style, Writer& out, int depth) {
  if (depth > kDeepestValue) fail("a value is nested too deeply");
  check_size(out.text.size());
  spend(1);
  auto put = [&](std::string_view text) { out.write(text, value.message, 0); };
  auto number = [&](const Datum& one) {
    if (one.kind == Kind::boolean) return std::string(one.truth ? "true" : "false");
    if (one.kind != Kind::real || std::isfinite(one.real)) return number_text(one);
    return std::string(std::isnan(one.real) ? "NaN" : one.real < 0 ? "-Infinity" : "Infinity");
  };
  auto line = [&](int level) {
    if (!style.indented) return;
    std::string text = "\n";
    for (int i = 0; i < level; ++i) text += style.indent;
    put(text);
  };
  switch (value.kind) {
    case Kind::none:
      return put("null");
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
    case Kind::big:
      return put(number(value));
    case Kind::string:
      return json_string(value, style.ascii, out);
    case Kind::list:
    case Kind::tuple:
      if (value.size == 0) return put("[]");
      put("[");
      for (uint32_t i = 0; i < value.size; ++i) {
        if (i > 0) put(style.between);
        line(depth + 1);
        json(value.items[i], style, out, depth + 1);
      }
      line(depth);
      return put("]");
    case Kind::dict:
      break;
    default:
      fail("Object of type " +
           std::string(value.kind == Kind::view ? view_name(value) : type_name(value.kind)) +
           " is not JSON serializable");
  }
  if (value.size == 0) return put("{}");
  std::vector<const Datum*> keys;
  for (size_t i = 0; i < value.size; ++i) keys.push_back(&value.items[2 * i]);
  if (style.sort_keys)
    std::stable_sort(keys.begin(), keys.end(),
                     [&](const Datum* a, const Datum* b) { return order(*a, *b, "<") == -1; });
  put("{");
  bool first = true;
  for (const Datum* key : keys) {
    if (!first) put(style.between);
    first = false;
    line(depth + 1);
    if (key->is_string()) {
      json_string(*key, style.ascii, out);
    } else if (key->kind == Kind::none) {
      out.write("\"null\"", key->message, 0);
    } else if (is_number(*key)) {
      out.write("\"" + number(*key) + "\"", key->message, 0);
    } else {
      fail("keys must be str, int, float, bool or None, not " + std::string(type_name(key->kind)));
    }
    put(style.after_key);
    json(key[1], style, out, depth + 1);
  }
  line(depth);
  put("}");
}

}  // namespace meshwright::chat
