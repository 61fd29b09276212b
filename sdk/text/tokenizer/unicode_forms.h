// Unicode's four normalization forms, as of the version that the tokenizers library has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sdk/text/tokenizer/aligned.h"

namespace meshwright::tokenizer {

enum class Form : uint8_t { nfc, nfd, nfkc, nfkd };

// `text` is valid UTF-8. Time is linear but for sorting runs of combining marks. Characters that
// are changed together, a letter and its marks, are told apart no further: each of their bytes
// stands for all of them.
void to_form(Aligned& text, Form form);
std::string in_form(std::string_view text, Form form);

// Whether the form never reaches back over the place before this character.
bool starts_anew(int32_t code, Form form);

}  // namespace meshwright::tokenizer
