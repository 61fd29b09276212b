// What a text goes through before it is cut into pieces: the normalizer of a tokenizer.json.
#pragma once

#include <memory>
#include <vector>

#include "sdk/text/tokenizer/aligned.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/field.h"

namespace meshwright::tokenizer {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Throws PatternProblem.
  virtual void apply(Aligned& text, SplitContext& context) const = 0;
  // What it leaves of the places where a text may be cut. None, unless it says otherwise.
  virtual void heed(CutPlaces& places) const { places = CutPlaces::none(); }
};

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

// Throws Error(bad_tokenizer).
Normalizers read_normalizer(const Field& normalizer);

}  // namespace meshwright::tokenizer
