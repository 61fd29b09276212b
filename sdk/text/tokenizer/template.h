// What stands around a text: the post_processor of a tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sdk/text/tokenizer/field.h"

namespace meshwright::tokenizer {

// Ids before and after those of the text; the text may stand more than once.
struct TemplatePiece {
  bool text = false;
  std::vector<int64_t> ids;
};
using Template = std::vector<TemplatePiece>;

// None where nothing stands there. What only moves offsets is left out. Throws
// Error(bad_tokenizer).
std::optional<Template> read_post_processor(const Field& post_processor);

}  // namespace meshwright::tokenizer
