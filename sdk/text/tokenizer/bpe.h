// A byte-level BPE vocabulary and its merges.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace meshwright::tokenizer {

// Token <-> id. Ids may have gaps. Built by add(), then seal() once.
class Vocabulary {
 public:
  void reserve(size_t tokens, size_t bytes);
  void add(std::string_view token, uint32_t id);
  // Two tokens of one id, if there are.
  std::optional<std::pair<std::string, std::string>> seal();

  std::optional<uint32_t> find(std::string_view token) const;
  std::optional<std::string_view> token_of(uint32_t id) const;
  size_t count() const { return entries_.size(); }
  std::vector<std::string_view> tokens() const;
  uint32_t largest_id() const { return entries_.empty() ? 0 : entries_.back().id; }

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
};

// What two neighbours become, and which pairs come first.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank, id;
  };
  explicit MergeTable(size_t merges = 0);
  void set(uint32_t left, uint32_t right, Merge merge);  // a later one of the same pair replaces
  const Merge* find(uint32_t left, uint32_t right) const;
  void erase_results(const std::vector<bool>& ids);  // the merges to ids that are true

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };
  size_t place_of(uint64_t pair) const;
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

class Bpe {
 public:
  Vocabulary vocabulary;
  MergeTable merges;
  std::array<std::optional<uint32_t>, 256> byte_ids;  // none: the vocabulary lacks the byte
  std::optional<uint32_t> unknown;                    // for such bytes; none: they vanish
  bool fuse_unknown = false;
  bool ignore_merges = false;  // a piece that is a token stays whole

  // Text never becomes one of these ids of several bytes, be it by merges or as a whole: it stays
  // in smaller tokens. A byte has no other spelling. Called once, after everything else is set.
  void keep_out(const std::vector<uint32_t>& ids);

  // Appends the ids of `piece`, and where in it each begins to `begins`, if given. A byte that
  // vanishes counts to the id before it. n log n.
  void encode(std::string_view piece, std::vector<int64_t>& out,
              std::vector<size_t>* begins = nullptr) const;

 private:
  std::vector<bool> kept_out_;  // by id; shorter than the vocabulary: the others are not
};

}  // namespace meshwright::tokenizer
