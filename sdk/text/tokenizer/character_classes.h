// Classes of characters as the tokenizers library has them: each by the version of Unicode that the
// library took it from, where utf8proc's tables are younger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sdk/base/files/utf8.h"

namespace meshwright::tokenizer {

// The same as character_at(), for loops over whole texts: most characters there are of one byte.
inline base::Character next_character(std::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  return byte < 0x80 ? base::Character{byte, 1} : base::character_at(text, at);
}

bool is_space(int32_t code);        // White_Space
bool is_number(int32_t code);       // Nd, Nl, No
bool is_letter(int32_t code);       // Lu, Ll, Lt, Lo
bool is_punctuation(int32_t code);  // P, and the signs of ASCII
bool is_control(int32_t code);      // Cc, Cf, Co
bool is_accent(int32_t code);       // M
bool is_nonspacing(int32_t code);   // Mn

// Most of what a text in scripts of many letters has, all of it old.
bool is_usual(int32_t code);
bool is_since_15(int32_t code);  // came with Unicode 15, 15.1 or 16
// What combines or composes to us and not to the library.
bool composed_later(int32_t code);
// The same of decompositions for compatibility.
bool is_compatible_later(int32_t code);

// The script of a character as UnicodeScripts counts them; 0: it goes with any.
uint8_t script_of(int32_t code);

}  // namespace meshwright::tokenizer
