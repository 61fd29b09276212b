#include <array>
#include <charconv>

#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

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
    piece.clear();
    auto hex = [&](char kind, int digits) {
      constexpr std::string_view kHex = "0123456789abcdef";
      piece += '\\';
      piece += kind;
      for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
        piece += kHex[(code >> shift) & 15];
    };
    if (code == static_cast<unsigned char>(mark) || code == '\\') {
      piece += '\\';
      piece += static_cast<char>(code);
    } else if (code == '\n') {
      piece = "\\n";
    } else if (code == '\r') {
      piece = "\\r";
    } else if (code == '\t') {
      piece = "\\t";
    } else if (code == ' ' || unicode::is_printable(code)) {
      piece = text.substr(at, size);
    } else if (code < 0x100) {
      hex('x', 2);
    } else if (code < 0x10000) {
      hex('u', 4);
    } else {
      hex('U', 8);
    }
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
    case Kind::tuple:
    case Kind::view: {
      put(value.kind == Kind::list    ? "["
          : value.kind == Kind::tuple ? "("
                                      : std::string(view_name(value)) + "([");
      for (uint32_t i = 0; i < value.size; ++i) {
        if (i > 0) put(", ");
        represent(value.items[i], out, depth + 1);
      }
      if (value.kind == Kind::tuple) return put(value.size == 1 ? ",)" : ")");
      return put(value.kind == Kind::list ? "]" : "])");
    }
    case Kind::dict:
      put("{");
      for (size_t i = 0; i < value.size; ++i) {
        if (i > 0) put(", ");
        represent(value.items[2 * i], out, depth + 1);
        put(": ");
        represent(value.items[2 * i + 1], out, depth + 1);
      }
      return put("}");
    case Kind::space: {
      put("<Namespace {");
      const Space& space = *value.space;
      for (size_t i = 0; i < space.count; ++i) {
        if (i > 0) put(", ");
        represent(space.entries[2 * i], out, depth + 1);
        put(": ");
        represent(space.entries[2 * i + 1], out, depth + 1);
      }
      return put("}>");
    }
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
