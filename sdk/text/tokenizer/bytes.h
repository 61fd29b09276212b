// UTF-8 as base has it, and what the tokenizer knows of Unicode beside its patterns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sdk/base/files/utf8.h"

namespace meshwright::tokenizer {

using base::append_utf8;
using base::Character;
using base::character_at;
using base::first_invalid;
using base::Utf8Stream;

// Unicode's White_Space.
bool is_space(int32_t code);

// The alphabet of byte-level vocabularies: every byte is a printable character, as GPT-2 chose
// them.

// The character that stands for a byte, in UTF-8.
std::string_view letter_of(uint8_t byte);
// `bytes` in letters.
std::string to_letters(std::string_view bytes);
// The bytes that the letters of `token` (valid UTF-8) stand for; none when some character is no
// letter.
std::optional<std::string> from_letters(std::string_view token);

}  // namespace meshwright::tokenizer
