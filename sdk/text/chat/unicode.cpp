#include "sdk/text/chat/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "sdk/text/chat/special_cases.h"
#include "sdk/text/chat/unicode_tables.h"

namespace meshwright::chat::unicode {

namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

const SpecialCase* special(char32_t code) {
  const SpecialCase* found =
      std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), code,
                       [](const SpecialCase& one, char32_t wanted) { return one.code < wanted; });
  return found != std::end(kSpecialCases) && found->code == code ? found : nullptr;
}

template <size_t N>
bool in(const CharRange (&ranges)[N], char32_t code) {
  const CharRange* found =
      std::lower_bound(std::begin(ranges), std::end(ranges), code,
                       [](const CharRange& one, char32_t wanted) { return one.last < wanted; });
  return found != std::end(ranges) && found->first <= code;
}

}  // namespace

size_t length(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

size_t offset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += decode(text, at).size;
  return std::min(at, text.size());
}

bool ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_blank(char32_t code) {
  if (code < 0x80)
    return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_line_end(char32_t code) {
  return (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

bool is_printable(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = decode(text, at);
    if (!is_printable(code)) return false;
    at += size;
  }
  return true;
}
bool is_printable(char32_t code) {
  if (code < 0x7f) return code >= ' ';
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

bool is_upper(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU || in(kOtherUppercase, code);
}
bool is_lower(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL || in(kOtherLowercase, code);
}
bool is_title(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LT; }
bool is_cased(char32_t code) { return is_upper(code) || is_lower(code) || is_title(code); }
bool is_case_ignorable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return in(kOtherIgnorable, code);
  }
}
bool is_alpha(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}
bool is_decimal(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
int decimal_of(char32_t code) {
  if (!is_decimal(code)) return -1;
  // Digits stand in rows from 0 to 9.
  char32_t first = code;
  while (is_decimal(first - 1)) --first;
  return static_cast<int>((code - first) % 10);
}
bool is_digit(char32_t code) { return is_decimal(code) || in(kOtherDigits, code); }
bool is_numeric(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return in(kNumerals, code);
  }
}
bool is_word(char32_t code) { return code == '_' || is_alpha(code) || is_numeric(code); }

bool is_name_start(char32_t code) {
  if (code < 0x80) return code == '_' || is_alpha(code);
  return in(kOtherStarts, code) ||
         ((is_alpha(code) || category(code) == UTF8PROC_CATEGORY_NL) && !in(kNoStarts, code));
}
bool is_name_part(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC:
      return !in(kNoContinues, code);
    default:
      return is_alpha(code) ? !in(kNoContinues, code) : in(kOtherContinues, code);
  }
}
bool is_identifier(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = decode(text, at);
    if (at == 0 ? !is_name_start(code) : !is_name_part(code)) return false;
    at += size;
  }
  return !text.empty();
}

void upper(char32_t code, std::string& out) {
  if (code >= 0x80)
    if (const SpecialCase* found = special(code)) {
      out += found->upper;
      return;
    }
  encode(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))), out);
}

void lower(char32_t code, std::string& out) {
  if (code == 0x130) {
    out += "i\xcc\x87";
    return;
  }
  encode(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), out);
}

void title(char32_t code, std::string& out) {
  if (code >= 0x80)
    if (const SpecialCase* found = special(code)) {
      out += found->title;
      return;
    }
  encode(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))), out);
}

void fold(char32_t code, std::string& out) {
  utf8proc_int32_t codes[4];  // a folding has at most 3
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), codes, 4,
                                             UTF8PROC_CASEFOLD, nullptr);
  if (count < 1 || count > 4) return encode(code, out);
  for (utf8proc_ssize_t i = 0; i < count; ++i) encode(static_cast<char32_t>(codes[i]), out);
}

std::pair<size_t, size_t> stripped(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    auto [code, size] = decode(text, begin);
    if (!is_blank(code)) break;
    begin += size;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (!is_blank(decode(text, last).code)) break;
    end = last;
  }
  return {begin, end};
}

}  // namespace meshwright::chat::unicode
