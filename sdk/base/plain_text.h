// Text of numbers, times and letters that no locale changes: who embeds us, or a plugin, may call
// setlocale(), and what is written here is read again, by us and by other programs. Code here uses
// these in place of the C library's; tests/headers holds that. Not public, and all inline, as
// words.h.
#pragma once

#include <locale.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>

namespace meshwright::text {

inline locale_t c_locale() {
  static const locale_t one = ::newlocale(LC_ALL_MASK, "C", nullptr);
  return one;
}

// std::printf's text as it is in the C locale.
[[gnu::format(printf, 1, 2)]] inline std::string format(const char* pattern, ...) {
  // The thread's own locale goes before the process'.
  const locale_t before = ::uselocale(c_locale());
  std::va_list values, again;
  va_start(values, pattern);
  va_copy(again, values);
  char room[256];
  const int size = std::vsnprintf(room, sizeof room, pattern, values);
  std::string out;
  if (size >= static_cast<int>(sizeof room)) {
    out.resize(static_cast<size_t>(size));
    std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  } else {
    out.assign(room, static_cast<size_t>(std::max(size, 0)));
  }
  va_end(again);
  va_end(values);
  ::uselocale(before);
  return out;
}

// std::strtod() of the C locale: too large is infinite, too small 0.
inline double read_real(const char* text, char** end = nullptr) {
  return ::strtod_l(text, end, c_locale());
}

// std::strftime() of the C locale: English names.
inline std::string format_time(const char* pattern, const std::tm& when) {
  char room[128];
  return {room, ::strftime_l(room, sizeof room, pattern, &when, c_locale())};
}

// Letters and digits of ASCII: <cctype> asks the locale, in some of which other bytes are letters.
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool is_alphanumeric(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }
inline char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower(c);
  return out;
}

}  // namespace meshwright::text
