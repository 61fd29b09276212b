// What documents follow from: as a hash, and part by part for people.
#pragma once

#include <string>

#include "prepare.h"
#include "sdk/text/chat/store.h"

namespace meshwright::jsonl {

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

}  // namespace meshwright::jsonl
