// The tokens of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace meshwright::tokenizer {

// Token <-> id. Ids may have gaps. Built by add(), then seal() once; it is not moved then.
class Vocabulary {
 public:
  void reserve(size_t tokens, size_t bytes);
  void add(std::string_view token, uint32_t id);
  // Two tokens of one id, if there are. Of ids of one token the last is found.
  std::optional<std::pair<std::string, std::string>> seal();

  std::optional<uint32_t> find(std::string_view token) const;
  std::optional<std::string_view> token_of(uint32_t id) const;
  size_t count() const { return entries_.size(); }
  std::vector<std::string_view> tokens() const;
  uint32_t largest_id() const { return entries_.empty() ? 0 : entries_.back().id; }
  size_t longest() const { return longest_; }  // of its tokens, in bytes

 private:
  struct Entry {
    uint32_t id, bytes;
    size_t offset;
  };
  std::string_view text_of(const Entry& entry) const {
    return std::string_view(text_).substr(entry.offset, entry.bytes);
  }
  std::string text_;  // all tokens, one after the other
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, uint32_t> ids_;
  size_t longest_ = 0;
};

// Ids that text may not become.
class KeptOut {
 public:
  void add(uint32_t id) {
    if (id >= ids_.size()) ids_.resize(size_t{id} + 1, false);
    ids_[id] = true;
  }
  bool has(uint32_t id) const { return id < ids_.size() && ids_[id]; }
  bool empty() const { return ids_.empty(); }

 private:
  std::vector<bool> ids_;
};

// "<0x0A>", the token of a byte where a vocabulary has no other for a character.
std::string byte_token(uint8_t byte);
// The byte of such a token, in letters of either case.
std::optional<uint8_t> byte_of_token(std::string_view token);

}  // namespace meshwright::tokenizer
