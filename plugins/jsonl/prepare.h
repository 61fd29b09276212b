// What a data set does before training, and says where a row cannot be had.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cached_store.h"
#include "encode_row.h"
#include "meshwright/data/dataset_kind.h"
#include "progress.h"
#include "row.h"
#include "sdk/text/chat/chat_template.h"
#include "token_store.h"

namespace meshwright::jsonl {

// Helps for an error of `chat` (nullptr: it could not be read) over `row`, whose messages `request`
// has. `message` is that of the error, `table` that of the options.
std::vector<std::string> template_help(const std::string& message, const chat::ChatTemplate* chat,
                                       const chat::ChatTemplate::Request& request, const Row& row,
                                       const std::string& table);

// The options of a data set, read.
struct JsonlOptions {
  std::string table = "dataset.jsonl";  // of the options, for messages
  std::vector<std::string> files;
  std::vector<std::string> left_out;  // files of the folder that `path` names, of another kind
  std::vector<std::string> empty;     // files of rows in that folder that hold none
  std::string folder;                 // of the tokenizer
  std::string chat_template;
  Asked asked;  // of rows: their format, and which column is what
  EncodeSettings encode;
  CachePlace cache;
  int threads = 1;
  std::string key;  // of what documents follow from, beside the contents of files

  // Throws Error(bad_dataset | bad_tokenizer | ...) with the key of what is wrong.
  static JsonlOptions read(const DatasetRequest& request);
  // Files that all ranks must have alike: the data, the tokenizer and its templates.
  std::vector<std::string> all_files() const;
  // How a chat is written and tokenized; a template that is named last.
  std::vector<std::string> language_files() const;
};

// 32 hexadecimal digits of all that documents follow from: XXH3-128.
std::string cache_key(const JsonlOptions& options);
// The parts of that key as a JSON object: `key_version`; `files` with name, bytes and `xxh128`
// (what `xxh128sum FILE` prints) of each file of rows; `language`, the same of the tokenizer's and
// the templates' files; `templates`, name and `xxh128` of the text of each; `special_tokens`, key
// and text of each; `options`, a line a setting. The names in `files` are those of whoever made the
// store, and not of its key. Long texts are cut, and of each list at most 64 are named, with
// `more_files` and so on as the number of the others: less than 1 MiB.
std::string key_parts(const JsonlOptions& options);
// 12 digits of the templates' names and texts.
std::string template_hash(const chat::Store& templates);

// The whole store, the same bytes for any number of threads. Throws Error(bad_dataset |
// bad_template) "FILE:LINE: what" for the first row that is wrong. `progress` is called by one
// thread at a time; `tell` hears what of the tokenizer's file is not followed.
std::vector<std::byte> build_store(const JsonlOptions& options, const std::string& key,
                                   const std::function<void(const Preparation&)>& progress,
                                   const Tell& tell);
// How many rows there are, right or wrong: none is looked into. Throws Error(bad_dataset) when
// there are none.
int64_t count_rows(const JsonlOptions& options);
// Row `number`, from 0 on, encoded as it is in the store; what the other rows hold does not matter.
// Throws Error(bad_dataset | bad_template) when there is something wrong with it.
struct ShownRow {
  std::string place;  // FILE:LINE
  Encoded encoded;
  std::string form;  // what its columns became; "": they are named so
};
ShownRow show_row(const JsonlOptions& options, int64_t number);
// From the cache, or made. `tell` hears lines for the user.
std::shared_ptr<const TokenStore> prepare_store(
    const JsonlOptions& options, const std::function<void(const std::string&)>& tell);

}  // namespace meshwright::jsonl
