// What cuts a text into the pieces that are merged each for itself.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sdk/text/tokenizer/pattern.h"

namespace meshwright::tokenizer {

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct SplitRange {
  size_t begin = 0, end = 0;
  bool match = false;
};
// The pieces of a text whose matches and gaps `parts` lists in order. Pieces may be empty.
std::vector<SplitRange> apply_behavior(std::vector<SplitRange> parts, SplitBehavior behavior);

// By a pattern; invert: what lies between its matches counts as the matches.
struct SplitStep {
  Pattern pattern;
  std::string source;  // the pattern as the file has it; empty for a literal
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
};
// Numbers, in Unicode's sense, apart from the rest.
struct DigitsStep {
  bool individual = false;
};
// The last step: from here on pieces are bytes.
struct BytesStep {
  bool add_prefix_space = true;
  bool use_regex = true;
};
using Step = std::variant<SplitStep, DigitsStep, BytesStep>;

// What is merged for itself. All but its first `added` bytes, a space that a step put there, stand
// in the text from `begin` on.
struct SplitPiece {
  std::string_view bytes;
  size_t begin = 0, added = 0;
};

// Takes `text` through the steps and hands over the pieces in order, none of them empty. Throws
// PatternProblem.
void pre_tokenize(const std::vector<Step>& steps, std::string_view text, PatternScratch& scratch,
                  const std::function<void(const SplitPiece&)>& take);

}  // namespace meshwright::tokenizer
