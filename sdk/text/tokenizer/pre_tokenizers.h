// What cuts a text into the pieces that go to the model each for itself: the pre_tokenizer of a
// tokenizer.json.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sdk/text/tokenizer/aligned.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/field.h"
#include "sdk/text/tokenizer/pattern.h"

namespace meshwright::tokenizer {

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

using Take = std::function<void(const Piece&)>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Hands the pieces over in order; they may be empty. Throws PatternProblem.
  virtual void split(const Piece& piece, SplitContext& context, const Take& take) const = 0;
  // What it leaves of the places where a text may be cut. None, unless it says otherwise.
  virtual void heed(CutPlaces& places) const { places = CutPlaces::none(); }
  // Whether it must know where in the source a piece begins.
  virtual bool needs_begins() const { return false; }
  // Whether pieces may hold other text than they were made of.
  virtual bool rewrites() const { return false; }
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  // The last one is ByteLevel, and hands over bytes where the model would get a letter for each.
  bool bytes = false;
};

// `takes_bytes`: the model does. Throws Error(bad_tokenizer).
PreTokenizers read_pre_tokenizer(const Field& pre_tokenizer, bool takes_bytes);

// Takes `piece` through the steps and hands over what it becomes in order, none of it empty. Throws
// PatternProblem.
void pre_tokenize(std::span<const std::unique_ptr<PreTokenizer>> steps, const Piece& piece,
                  SplitContext& context, const Take& take);

// Patterns whose matches end at every cut (divide.h), and leave nothing between them.
std::span<const std::string_view> separating_patterns();

}  // namespace meshwright::tokenizer
