// Byte-level BPE from the words of a text (Sennrich, Haddow and Birch, arXiv:1508.07909, over
// bytes): the most frequent pair of neighbours becomes a token, until the vocabulary is full.
//
//   TrainedBpe trained = train_bpe(words, {.vocab_size = 32000, .special = {"<|endoftext|>"}});
//
// Vocabulary, merges and their order are those of the BpeTrainer of the `tokenizers` library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/text/trainer/word_counts.h"

namespace meshwright::tokenizer {

struct TrainerOptions {
  size_t vocab_size = 32000;
  int64_t min_frequency = 0;              // a pair that is there less often is not merged
  std::vector<std::string> special = {};  // the first ids, none of them twice
  // Only so many bytes become tokens, the most frequent ones, and all others vanish from texts.
  // None: all 256 do, also those that the text lacks.
  std::optional<size_t> limit_alphabet = {};
  // Pairs of this many bytes and more are not merged, but for pairs of two bytes.
  std::optional<size_t> max_token_length = {};
};

struct TrainedBpe {
  std::vector<std::string> tokens;                    // by id, in letters (normalize.h)
  std::vector<std::pair<uint32_t, uint32_t>> merges;  // of ids, in their order
  int64_t text_tokens = 0;  // what the text that it was trained on becomes
  int64_t lost_bytes = 0;   // of the text, which limit_alphabet takes away
};

// `progress` hears of every merge, with the number of tokens there are. The same whatever the order
// of the words.
TrainedBpe train_bpe(const WordCounts& words, const TrainerOptions& options,
                     const std::function<void(size_t tokens)>& progress);

}  // namespace meshwright::tokenizer
