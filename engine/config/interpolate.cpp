#include "engine/config/interpolate.h"

#include <cctype>

#include "sdk/base/plain_text.h"

namespace meshwright::config {
namespace {

struct BadReference {
  std::string message, help;
};

bool is_name(std::string_view name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) return false;
  for (char c : name)
    if (!text::is_alphanumeric(c) && c != '_') return false;
  return true;
}

// One reference without its braces: VAR or VAR:-default.
std::string look_up(std::string_view body, const Environment& environment) {
  size_t colon = body.find(":-");
  std::string name(body.substr(0, colon));
  std::string shown = "${" + std::string(body) + "}";
  if (!is_name(name))
    throw BadReference{shown + " does not name an environment variable",
                       "write ${NAME} or ${NAME:-default}, or $${ for a literal ${"};
  std::optional<std::string> value = environment(name);
  if (value && !is_valid_utf8(*value))
    throw BadReference{"environment variable " + name + " is not valid UTF-8", "unset " + name};
  // As in a shell, ":-" also covers a variable that is set but empty.
  if (colon != std::string_view::npos)
    return value && !value->empty() ? *value : std::string(body.substr(colon + 2));
  if (!value)
    throw BadReference{"environment variable " + name + " is not set",
                       "export " + name + "=..., or give a default: ${" + name + ":-default}"};
  return *value;
}

std::string replaced(std::string_view text, const Environment& environment) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i, 3) == "$${") {
      out += "${";
      i += 3;
    } else if (text.substr(i, 2) == "${") {
      size_t end = text.find('}', i);
      if (end == std::string_view::npos)
        throw BadReference{"${ without a closing }",
                           "close it: ${NAME}, or write $${ for a literal ${"};
      std::string_view body = text.substr(i + 2, end - i - 2);
      if (body.find("${") != std::string_view::npos)
        throw BadReference{"a reference inside a reference is not possible: " +
                               std::string(text.substr(i, end - i + 1)),
                           "use one ${NAME:-default} with a plain default"};
      out += look_up(body, environment);
      i = end + 1;
    } else {
      out += text[i++];
    }
  }
  return out;
}

void walk(Value& value, const std::string& key, const Environment& environment,
          const std::string& file, Diagnostics& diagnostics) {
  if (value.kind == Value::Kind::string && value.text.find("${") != std::string::npos) {
    Place& place = value.place;
    try {
      std::string text = replaced(value.text, environment);
      // "$${" alone consults no environment.
      if (text != value.text && escape_references(text) != value.text &&
          place.source == Origin::Source::file)
        place.source = Origin::Source::environment;
      value.text = std::move(text);
    } catch (const BadReference& bad) {
      Origin origin{place.source, place.source == Origin::Source::file ? file : std::string(),
                    place.line, place.column};
      diagnostics.add(Error(ErrorCode::bad_interpolation, key + ": " + bad.message)
                          .key(key)
                          .at(origin)
                          .help(bad.help));
    }
  }
  for (Value& item : value.items) walk(item, key, environment, file, diagnostics);
  for (Entry& entry : value.entries)
    walk(entry.value, join_key(key, entry.key), environment, file, diagnostics);
}

}  // namespace

void interpolate(Value& root, const Environment& environment, const std::string& file,
                 Diagnostics& diagnostics) {
  walk(root, "", environment, file, diagnostics);
}

std::string escape_references(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "${") out += '$';
    out += text[i];
  }
  return out;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    auto byte = [&](size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    unsigned lead = byte(i);
    size_t length = lead < 0x80         ? 1
                    : (lead >> 5) == 6  ? 2
                    : (lead >> 4) == 14 ? 3
                    : (lead >> 3) == 30 ? 4
                                        : 0;
    if (length == 0) return false;
    unsigned code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) >> 6) != 2) return false;
      code = (code << 6) | (byte(i + k) & 0x3F);
    }
    constexpr unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < least[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    i += length;
  }
  return true;
}

}  // namespace meshwright::config
