// What Python's str knows of Unicode, on UTF-8 that is valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "sdk/base/files/utf8.h"

namespace meshwright::chat::unicode {

// The character at `at`, and the bytes it takes.
struct Char {
  char32_t code;
  uint32_t size;
};
inline Char decode(std::string_view text, size_t at) {
  const base::Character found = base::character_at(text, at);
  return {static_cast<char32_t>(found.code), static_cast<uint32_t>(found.bytes)};
}
inline void encode(char32_t code, std::string& out) {
  base::append_utf8(out, static_cast<int32_t>(code));
}
inline bool valid(std::string_view text) { return base::first_invalid(text) == text.size(); }

size_t length(std::string_view text);
// The byte where character `index` begins; the end for an index beyond.
size_t offset(std::string_view text, size_t index);
bool ascii(std::string_view text);

bool is_blank(char32_t code);     // str.isspace
bool is_line_end(char32_t code);  // str.splitlines
bool is_printable(char32_t code);
bool is_printable(std::string_view text);
bool is_upper(char32_t code);
bool is_lower(char32_t code);
bool is_title(char32_t code);
bool is_cased(char32_t code);
bool is_case_ignorable(char32_t code);  // of what stands around a letter, its case does not ask
bool is_alpha(char32_t code);
bool is_decimal(char32_t code);
int decimal_of(char32_t code);  // -1: it is no decimal digit
bool is_digit(char32_t code);
bool is_numeric(char32_t code);
bool is_word(char32_t code);                // \w
bool is_name_start(char32_t code);          // XID_Start, and the underscore
bool is_name_part(char32_t code);           // XID_Continue
bool is_identifier(std::string_view text);  // str.isidentifier

// Appends the whole mapping, which may be several characters.
void upper(char32_t code, std::string& out);
void lower(char32_t code, std::string& out);
void title(char32_t code, std::string& out);
void fold(char32_t code, std::string& out);

// Bytes [begin, end) that str.strip() leaves.
std::pair<size_t, size_t> stripped(std::string_view text, bool left, bool right);

}  // namespace meshwright::chat::unicode
