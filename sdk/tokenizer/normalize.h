// Unicode's canonical composition, NFC.
#pragma once

#include <string>
#include <string_view>

namespace meshwright::tokenizer {

// `text` is valid UTF-8. Time is linear but for sorting runs of combining marks.
std::string compose(std::string_view text);

}  // namespace meshwright::tokenizer
