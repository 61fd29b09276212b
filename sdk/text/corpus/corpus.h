// Texts of any size to tokens: several threads, bounded memory, the same ids whatever the number of
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sdk/text/corpus/walk.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

struct CorpusOptions {
  Documents documents = Documents::files;
  std::string text_key = "text";
  std::optional<int64_t> document_end = {};  // put after every document
  bool special = true;  // with what the tokenizer's template puts around every document
  int threads = 1;
  size_t piece = 1 << 20;  // bytes that one thread takes at a time
};

struct CorpusCounts {
  int64_t tokens = 0, bytes = 0, documents = 0;
  int64_t young = 0;  // characters that are younger than the tables here: young_characters()
  int64_t whole =
      0;  // bytes of the largest file that could not be cut, when it is larger than a piece
};

// Hands the ids over in order, with the bytes of text that they stand for; `take` is called by the
// calling thread. Throws Error(bad_dataset) with file and place of what is no text, and whatever
// `take` throws.
CorpusCounts encode_files(
    const Tokenizer& tokenizer, const std::vector<std::string>& files, const CorpusOptions& options,
    const std::function<void(std::span<const int64_t> ids, int64_t bytes)>& take);

}  // namespace meshwright::tokenizer
