// A text that is changed, and where each of its bytes comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/text/tokenizer/pattern.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

struct Aligned {
  std::string text;
  // Of each byte of `text`, those of the source that it stands for. Ascending. Empty where nobody
  // asks, and only then while `text` is not.
  std::vector<ByteRange> from;
  bool tracked = false;

  Aligned() = default;
  // A part of the source, which begins at `at`, as it is.
  Aligned(std::string_view source, size_t at, bool is_tracked);
  // An empty one that what `before` held is written to, changed.
  static Aligned after(const Aligned& before);

  // Of bytes [begin, end), at least one. Nothing where it is not tracked.
  ByteRange source(size_t begin, size_t end) const {
    return tracked ? ByteRange{from[begin].begin, from[end - 1].end} : ByteRange{};
  }
  // Bytes [begin, end) of `other` as they are.
  void keep(const Aligned& other, size_t begin, size_t end) {
    text.append(other.text, begin, end - begin);
    if (tracked)
      from.insert(from.end(), other.from.begin() + static_cast<std::ptrdiff_t>(begin),
                  other.from.begin() + static_cast<std::ptrdiff_t>(end));
  }
  // Each byte of `bytes` stands for all of `source`.
  void put(std::string_view bytes, ByteRange source) {
    text += bytes;
    if (tracked) from.insert(from.end(), bytes.size(), source);
  }
  void put(int32_t code, ByteRange source);
};

// What a step is taken with.
struct SplitContext {
  PatternScratch& scratch;
  bool continues = false;  // the text that begins at 0 is not the beginning of one
};

// What is handed to the model for itself: bytes, and of each of them where it comes from, if that
// is asked for.
struct Piece {
  std::string_view text;
  const ByteRange* from = nullptr;
  size_t at = 0;  // in the source, where the text begins; of use while `from` is not there

  size_t begin() const { return from != nullptr && !text.empty() ? from[0].begin : at; }
  Piece part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), from == nullptr ? nullptr : from + begin, at + begin};
  }
};

}  // namespace meshwright::tokenizer
