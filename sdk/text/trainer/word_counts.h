// The words of text files and how often each is there: all that a tokenizer is trained on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/text/corpus/walk.h"

namespace meshwright::tokenizer {

// Different words with their counts, in the order in which they came. Some 50 bytes a word.
class WordCounts {
 public:
  WordCounts() : slots_(1024) {}
  void add(std::string_view word, int64_t count = 1);
  void add(const WordCounts& others);
  size_t size() const { return entries_.size(); }
  std::string_view word(size_t index) const {
    return std::string_view(text_).substr(entries_[index].begin, entries_[index].bytes);
  }
  int64_t count(size_t index) const { return entries_[index].count; }
  // What a word is made of is needed once; the counts stay.
  int64_t words() const { return words_; }  // of the text
  int64_t bytes() const { return bytes_; }  // of all of them

 private:
  struct Entry {
    size_t begin;
    uint32_t bytes;
    int64_t count;
  };
  // A word's index and one, and its hash; an index of 0: none.
  struct Slot {
    uint32_t next = 0, hash = 0;
  };
  void grow();
  std::string text_;  // all words, one after the other
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
  int64_t words_ = 0, bytes_ = 0;
};

// How a text is cut into words, in all of which merges stay: the patterns of well-known models.
enum class WordPattern : uint8_t { gpt2, gpt4, llama3, qwen2 };
// In Ruby's syntax, as a tokenizer.json has it.
std::string_view pattern_text(WordPattern pattern);

struct CountOptions {
  WordPattern pattern = WordPattern::gpt2;
  Documents documents = Documents::files;
  std::string text_key = "text";
  int threads = 1;
  size_t piece = 1 << 20;  // bytes that one thread takes at a time
};

// What is counted does not depend on the number of threads. `progress` hears of every piece, by its
// bytes. Throws Error(bad_dataset) with file and place.
struct CountedText {
  WordCounts words;
  WalkCounts walked;
};
CountedText count_words(const std::vector<std::string>& files, const CountOptions& options,
                        const std::function<void(int64_t bytes)>& progress);

}  // namespace meshwright::tokenizer
