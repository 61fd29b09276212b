#include "text.h"

#include <charconv>

#include "meshwright/tp_plan.h"

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

namespace meshwright {

namespace {

// Matches one [..] set at `p` against `c`. Returns the index after the set, or 0 when the bracket
// never closes (then it is a plain '[').
size_t match_set(std::string_view pattern, size_t p, char c, bool& hit) {
  size_t at = p + 1;
  bool negate = at < pattern.size() && pattern[at] == '!';
  if (negate) ++at;
  size_t first = at;
  hit = false;
  for (; at < pattern.size() && (pattern[at] != ']' || at == first); ++at) {
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      if (pattern[at] <= c && c <= pattern[at + 2]) hit = true;
      at += 2;
    } else if (pattern[at] == c) {
      hit = true;
    }
  }
  if (at >= pattern.size()) return 0;
  if (negate) hit = !hit;
  return at + 1;
}

std::string_view last_level(std::string_view name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

// Linear in practice: on a mismatch only the last `*` is extended.
bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
      continue;
    }
    if (p < pattern.size()) {
      bool hit = false;
      size_t next = pattern[p] == '[' ? match_set(pattern, p, text[t], hit) : 0;
      if (next == 0) {
        hit = pattern[p] == '?' || pattern[p] == text[t];
        next = p + 1;
      }
      if (hit) {
        p = next;
        ++t;
        continue;
      }
    }
    if (star == std::string_view::npos) return false;
    p = star + 1;
    t = ++resume;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool pattern_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty() || name.empty()) return pattern.empty() && name.empty();
  // The last levels first: names of a model have the first ones in common.
  if (!glob_matches(last_level(pattern), last_level(name))) return false;
  for (;;) {
    size_t pattern_dot = pattern.find('.'), name_dot = name.find('.');
    if (!glob_matches(pattern.substr(0, pattern_dot), name.substr(0, name_dot))) return false;
    if (pattern_dot == std::string_view::npos || name_dot == std::string_view::npos)
      return pattern_dot == name_dot;
    pattern.remove_prefix(pattern_dot + 1);
    name.remove_prefix(name_dot + 1);
  }
}

}  // namespace meshwright
