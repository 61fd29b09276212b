#include "text.h"

#include <charconv>

namespace meshwright::text {
namespace {

template <class T>
std::optional<T> parse_whole(std::string_view s) {
  T v{};
  auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
  if (error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return v;
}

}  // namespace

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          constexpr char hex[] = "0123456789ABCDEF";
          out += "\\u00";
          out += hex[static_cast<unsigned char>(c) >> 4];
          out += hex[c & 15];
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

bool lies_under(std::string_view name, std::string_view module) {
  if (module.empty()) return !name.empty();
  return name.size() > module.size() && name.starts_with(module) && name[module.size()] == '.';
}

bool lies_in(std::string_view name, std::string_view module) {
  return name == module || lies_under(name, module);
}

std::optional<OptionValue> parse_literal(std::string_view text) {
  text = trim(text);
  if (text == "true" || text == "false") return OptionValue(text == "true");
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"' &&
      text.find('"', 1) == text.size() - 1)
    return OptionValue(std::string(text.substr(1, text.size() - 2)));
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    std::vector<std::string> strings;
    std::vector<double> numbers;
    std::string_view inner = trim(text.substr(1, text.size() - 2));
    if (inner.empty()) return OptionValue(strings);
    for (std::string_view item : split(inner, ',')) {
      std::optional<OptionValue> value = parse_literal(item);
      if (!value) return std::nullopt;
      if (auto* s = std::get_if<std::string>(&*value))
        strings.push_back(*s);
      else if (auto* d = std::get_if<double>(&*value))
        numbers.push_back(*d);
      else if (auto* i = std::get_if<int64_t>(&*value))
        numbers.push_back(static_cast<double>(*i));
      else
        return std::nullopt;
    }
    if (!strings.empty() && !numbers.empty()) return std::nullopt;
    return strings.empty() ? OptionValue(numbers) : OptionValue(strings);
  }
  if (auto i = parse_whole<int64_t>(text)) return OptionValue(*i);
  if (auto d = parse_whole<double>(text)) return OptionValue(*d);
  return std::nullopt;
}

}  // namespace meshwright::text
