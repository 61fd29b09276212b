// The alphabet of byte-level vocabularies: every byte is a printable character, as GPT-2 chose
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshwright::tokenizer {

// The character that stands for a byte, in UTF-8.
std::string_view letter_of(uint8_t byte);
// `bytes` in letters.
std::string to_letters(std::string_view bytes);
// The bytes that the letters of `token` (valid UTF-8) stand for; none when some character is no
// letter.
std::optional<std::string> from_letters(std::string_view token);

}  // namespace meshwright::tokenizer
