// Files of text to a store of tokens, once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cached_store.h"
#include "encode_row.h"
#include "meshwright/data/dataset_kind.h"
#include "progress.h"
#include "text_documents.h"
#include "token_store.h"

namespace meshwright::jsonl {

// The options of a data set of text, read.
struct TextOptions {
  std::string table = "dataset.text";  // of the options, for messages
  std::string path_key = "dataset.path", tokenizer_key = "dataset.tokenizer";
  std::vector<std::string> files;
  std::vector<std::string> left_out;  // of the folder that `path` names: hidden ones
  std::string folder;                 // of the tokenizer
  DocumentRules rules;
  std::string document_end = "auto";  // none, or a token
  CachePlace cache;
  int threads = 1;
  std::string key;  // of what documents follow from, beside the contents of files

  // Throws Error(bad_dataset | bad_tokenizer | ...) with the key of what is wrong.
  static TextOptions read(const DatasetRequest& request);
  // How a text is tokenized.
  std::vector<std::string> language_files() const;
  // Files that all ranks must have alike: the data and the tokenizer.
  std::vector<std::string> all_files() const;
};

// Documents to ids: what the tokenizer puts around a text, and the token that ends it.
class TextEncoder {
 public:
  // Throws Error(bad_tokenizer): there is no such token, or no tokenizer.
  explicit TextEncoder(const TextOptions& options);
  // Where documents may be cut so that the ids of the parts are those of the whole.
  tokenizer::Cuts cuts() const { return frame_ ? language_->tokenizer.cuts() : tokenizer::Cuts{}; }
  void encode(const DocumentPart& part, std::vector<int64_t>& to) const;
  const std::optional<int64_t>& end() const { return end_; }
  const std::optional<tokenizer::Tokenizer::Frame>& frame() const { return frame_; }
  const tokenizer::Tokenizer& tokenizer() const { return language_->tokenizer; }

 private:
  std::shared_ptr<const Language> language_;
  std::optional<tokenizer::Tokenizer::Frame> frame_;
  std::optional<int64_t> end_;
};

// 32 hexadecimal digits of all that documents follow from, and what they were made of as a JSON
// object, as those of rows (key_parts() in prepare.h): XXH3-128.
std::pair<std::string, std::string> text_key(const TextOptions& options);

// From the cache, or made. `tell` hears lines for the user.
std::shared_ptr<const TokenStore> text_store(const TextOptions& options, const Tell& tell);

}  // namespace meshwright::jsonl
