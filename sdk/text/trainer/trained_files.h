// A trained vocabulary as the files that tokenizers and transformers read.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "sdk/text/trainer/bpe_trainer.h"
#include "sdk/text/trainer/word_counts.h"

namespace meshwright::tokenizer {

// Which of the special tokens does what.
struct TokenRoles {
  std::optional<std::string> eos = {}, pad = {};
  std::optional<std::string> bos = {};  // also put before every text
  std::optional<int64_t> max_length = {};
};

// tokenizer.json, key by key as the `tokenizers` library saves what it trained.
boost::json::object tokenizer_json(const TrainedBpe& trained, const TrainerOptions& options,
                                   WordPattern pattern, const TokenRoles& roles);
// As the same library lays it out.
std::string laid_out(const boost::json::value& value);
// tokenizer_config.json, by which transformers loads it.
boost::json::object tokenizer_config(const TokenRoles& roles);

}  // namespace meshwright::tokenizer
