// Characters that Unicode has got after the tables here were made: the tokenizers library, whose
// tables are younger, may cut a text at them otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright::tokenizer {

// How many characters of `text`, which is valid UTF-8, these are. Private ones are not among them.
int64_t young_characters(std::string_view text);
// "3 characters are younger than Unicode 14.0.0, ...".
std::string tell_young(int64_t characters);

// What the library does not compose, nor order, as its tables for that are old.
bool composed_later(int32_t code);

}  // namespace meshwright::tokenizer
