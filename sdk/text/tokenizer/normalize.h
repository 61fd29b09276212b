// Unicode's canonical composition, NFC, as of the version that the tokenizers library has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::tokenizer {

// `text` is valid UTF-8. Time is linear but for sorting runs of combining marks.
std::string compose(std::string_view text);

// Characters that composition changed, together: bytes of the source and of what became of them.
struct Recomposed {
  size_t begin = 0, end = 0, composed_begin = 0, composed_end = 0;
};
// All of them in `text`, whose composition is `composed`; what lies between them is the same in
// both.
std::vector<Recomposed> recomposed(std::string_view text, std::string_view composed);
// Whether composition never reaches back over the place before this character.
bool starts_anew(int32_t code);

}  // namespace meshwright::tokenizer
