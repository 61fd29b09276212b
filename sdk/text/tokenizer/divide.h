// What cuts a text into the pieces that are merged each for itself.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sdk/text/tokenizer/added_tokens.h"
#include "sdk/text/tokenizer/pattern.h"
#include "sdk/text/tokenizer/tokenizer.h"

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

// Where a long text may be cut so that the ids of its parts, one after the other, are those of the
// whole.
//
// A cut is made where every pattern in use ends a match anyway, whatever follows, and where no
// pattern looks back:
// * before a space that follows a letter or a digit;
// * after a line feed that stands alone between a character that is no white space and a letter or
// a digit. Patterns that are not known to keep to this (divides() compares them as texts), and
// added tokens that could lie across such a place, make a text whole. The tests hold the parts to
// the whole for every pattern listed.

// Patterns whose matches end at every cut, and leave nothing between them: one of these, or
// GPT-2's, has to be among the steps.
std::span<const std::string_view> separating_patterns();
Cuts cuts_of(const std::vector<Step>& steps, const std::deque<AddedToken>& added);

// The last place in (begin, end] where `text` may be cut, else the first one behind `end`, else
// text.size(). `text` may be any bytes: where it is no valid UTF-8 it is not cut.
size_t cut_near(std::string_view text, size_t begin, size_t end, Cuts cuts);

}  // namespace meshwright::tokenizer
