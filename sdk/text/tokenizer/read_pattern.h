// A pattern as a tokenizer.json has it: {"String": ...} or {"Regex": ...}.
#pragma once

#include <string>

#include "sdk/text/tokenizer/field.h"
#include "sdk/text/tokenizer/pattern.h"

namespace meshwright::tokenizer {

struct ReadPattern {
  Pattern pattern;
  std::string source;
  bool literal = false;
};

// Throws Error(bad_tokenizer).
ReadPattern read_pattern(const Field& pattern);

}  // namespace meshwright::tokenizer
