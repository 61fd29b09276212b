// Characters as the tokenizer knows them: UTF-8, the alphabet of bytes, and what is young.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/base/files/utf8.h"

namespace meshwright::tokenizer {

using base::append_utf8;
using base::Character;
using base::character_at;
using base::first_invalid;
using base::Utf8Stream;

// The alphabet of byte-level vocabularies: every byte is a printable character, as GPT-2 chose
// them.

// The character that stands for a byte, in UTF-8.
std::string_view letter_of(uint8_t byte);
// `bytes` in letters.
std::string to_letters(std::string_view bytes);
// The bytes that the letters of `token` (valid UTF-8) stand for; none when some character is no
// letter.
std::optional<std::string> from_letters(std::string_view token);

// How many characters of `text`, which is valid UTF-8, Unicode has got after the tables here were
// made: the tokenizers library, whose tables are younger, may cut a text at them otherwise. Private
// ones are not among them.
int64_t young_characters(std::string_view text);
// "3 characters are younger than Unicode 14.0.0, ...".
std::string tell_young(int64_t characters);

}  // namespace meshwright::tokenizer
