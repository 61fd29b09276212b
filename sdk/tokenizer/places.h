// Places of a text: those of what was composed from it, and those in which nothing is special.
#pragma once

#include <span>
#include <vector>

#include "sdk/tokenizer/normalize.h"
#include "sdk/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

// From a part of a text as it is after composition back to the text.
class Places {
 public:
  // The part begins at `base`.
  Places(size_t base, std::vector<Recomposed> changed)
      : base_(base), changed_(std::move(changed)) {}
  // What was changed is not divided: a range that has some of it gets all.
  ByteRange source(ByteRange composed) const;

 private:
  size_t begin_of(size_t composed) const;
  size_t end_of(size_t composed) const;
  size_t base_;
  std::vector<Recomposed> changed_;
};

// Throws Error(internal) for parts of a text of `bytes` that do not ascend, overlap or leave it.
void check_parts(std::span<const ByteRange> parts, size_t bytes);
// Whether some byte of `range` is in one of the parts.
bool overlaps(std::span<const ByteRange> parts, ByteRange range);

}  // namespace meshwright::tokenizer
