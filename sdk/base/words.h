// Words and names, for everything in this repository that reads them. Not public, and all inline:
// the SDK library hides what is not.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plain_text.h"

namespace meshwright::text {

// Choices of an option that names a dtype to store, compute or send parameters and gradients in:
// those that training works with.
inline constexpr const char* kTrainingDTypes = "float32|bfloat16|float16|float64";

// Without white space at both ends.
inline std::string_view trim(std::string_view text) {
  constexpr std::string_view space = " \t\r\n\v\f";
  size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

// The parts between separators, empty ones too: one more than there are separators.
inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (;;) {
    size_t at = text.find(separator);
    out.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}
// The parts that are not empty. nullptr: none.
inline std::vector<std::string> split_names(const char* text, char separator) {
  std::vector<std::string> out = split(text == nullptr ? "" : text, separator);
  std::erase(out, "");
  return out;
}

template <class Range>
std::string join(const Range& parts, std::string_view separator) {
  std::string out;
  bool first = true;
  for (const auto& part : parts) {
    if (!first) out += separator;
    out += part;
    first = false;
  }
  return out;
}

// "a, b and 3 more", "a; b; and 3 more": of many the first `most`.
inline std::string first_few(const std::vector<std::string>& items, size_t most,
                             std::string_view separator = ", ") {
  const size_t shown = std::min(items.size(), most);
  std::string out = join(std::span(items).first(shown), separator);
  if (shown == items.size()) return out;
  return out + (separator == ", " ? " and " : "; and ") + std::to_string(items.size() - shown) +
         " more";
}

// All of the text as a number, whole unless T is not.
template <class T = int64_t>
std::optional<T> to_number(std::string_view text) {
  T out{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end ? std::optional(out) : std::nullopt;
}

// Lower case, '-' as '_': how names compare.
inline std::string normal(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// [a-z][a-z0-9_]*, at most 64 characters.
inline bool is_identifier(std::string_view text) {
  auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  return !text.empty() && text.size() <= 64 && lower(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return lower(c) || (c >= '0' && c <= '9') || c == '_'; });
}

// Numbers of things as people read them. Not public, all inline.

// 1234567 as "1,234,567".
inline std::string grouped(int64_t value) {
  std::string out = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = out.size(); at > first + 3;) out.insert(at -= 3, ",");
  return out;
}

// 8192.0 as "8192".
inline std::string whole_number(double value) { return std::to_string(std::llround(value)); }

// 0.0123456 as "0.0123": so many digits that count.
inline std::string short_number(double value, int digits = 3) {
  return format("%.*g", digits, value);
}

// The divisors of a number of at least 1, those nearest to `wanted` first, by their ratio: what a
// message proposes in place of a size that does not divide.
inline std::vector<int64_t> divisors_near(int64_t of, int64_t wanted) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= of / d; ++d) {
    if (of % d != 0) continue;
    out.push_back(d);
    if (d != of / d) out.push_back(of / d);
  }
  std::sort(out.begin(), out.end());
  auto far = [&](int64_t d) {
    return std::abs(std::log(static_cast<double>(d) / static_cast<double>(wanted)));
  };
  std::stable_sort(out.begin(), out.end(), [&](int64_t a, int64_t b) { return far(a) < far(b); });
  return out;
}

// "1 row", "1,200 rows", "2 batches" ("batch" and "es").
inline std::string counted(int64_t value, std::string_view word,
                           std::string_view plural_ending = "s") {
  return grouped(value) + " " + std::string(word) +
         std::string(value == 1 ? std::string_view() : plural_ending);
}

// Ranks and sizes of messages as errors and verdicts write them. Not public, all inline.

// "[0, 1, 2]"; of many the first eight and the last.
inline std::string rank_list(const std::vector<int64_t>& ranks) {
  std::string out = "[";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == 8 && ranks.size() > 10) return out + ", ... " + std::to_string(ranks.back()) + "]";
    out += (i ? ", " : "") + std::to_string(ranks[i]);
  }
  return out + "]";
}

inline std::string message_size(int64_t bytes) {
  if (bytes < 10000) return std::to_string(bytes) + " bytes";
  if (bytes < 1000000) return format("%.1f kB", static_cast<double>(bytes) / 1e3);
  return format("%.1f MB", static_cast<double>(bytes) / 1e6);
}

}  // namespace meshwright::text
