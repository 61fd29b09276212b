// Tokens that are found in a text before anything else is done with it.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/text/tokenizer/field.h"
#include "sdk/text/tokenizer/pattern.h"
#include "sdk/text/tokenizer/vocabulary.h"

namespace meshwright::tokenizer {

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  std::string matched;  // what is looked for: the content, normalized where the token says so
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

// Finds tokens from left to right, the longest first.
class TokenFinder {
 public:
  static constexpr size_t kMaxBytes = 1024;  // of a token
  // False when the same text was added before, or it has none. `token` stays where it is.
  bool add(const AddedToken& token);

  struct Part {
    std::string_view text;
    const AddedToken* token = nullptr;  // null: text between tokens
  };
  // Where special tokens are text like any other.
  struct Plain {
    // Whether bytes [begin, end) of the text lie in such a part, if only some of them.
    std::function<bool(size_t begin, size_t end)> overlaps;
    int64_t kept = 0;  // grows by the special tokens that are found there
  };
  // Parts in order, none of them empty.
  std::vector<Part> cut(std::string_view text, PatternScratch& scratch,
                        Plain* plain = nullptr) const;

 private:
  // Children are a list: first_child, then next of each.
  struct Node {
    uint32_t first_child = 0, next = 0;
    uint8_t byte = 0;
    const AddedToken* token = nullptr;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;
  // At the start of `text`. `heeds`: a token that it does not let pass counts as absent.
  template <class Heeds>
  const AddedToken* longest(std::string_view text, const Heeds& heeds) const;
  static bool stands_alone(std::string_view text, size_t begin, size_t end,
                           PatternScratch& scratch);
  std::vector<Node> nodes_{1};
  std::bitset<256> begins_;  // bytes that some token begins with
};

// Without `matched`, and with the ids that the reference gives, which must be those of the file.
// Throws Error(bad_tokenizer).
std::deque<AddedToken> read_added_tokens(const Field& added, const Vocabulary& vocabulary);

}  // namespace meshwright::tokenizer
