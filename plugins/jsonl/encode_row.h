// Rows to documents: rendered by the chat template, tokenized, with the tokens that are learnt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "row.h"
#include "sdk/text/chat/chat_template.h"
#include "sdk/text/chat/store.h"
#include "sdk/text/tokenizer/tokenizer.h"
#include "token_store.h"

namespace meshwright::jsonl {

using Bytes = tokenizer::ByteRange;

enum class TrainOn : uint8_t {
  assistant,  // every answer
  last,       // the last answer of a conversation
  all,        // every token but those of turns of weight 0
};
enum class SpecialInContent : uint8_t {
  text,   // what looks like a special token in a string of the row is plain text
  parse,  // it is that token
  error,  // it is refused
};

struct EncodeSettings {
  TrainOn train_on = TrainOn::assistant;
  SpecialInContent special = SpecialInContent::text;
  chat::Value variables = chat::Value::dict();  // template_variables
  std::optional<chat::Date> date;
  std::string table = "dataset.jsonl";  // of the options, for messages
};

// The token that begins or ends every text.
struct EdgeToken {
  int64_t id = 0;
  std::string text;
};

// A tokenizer and its chat templates.
struct Language {
  tokenizer::Tokenizer tokenizer;
  chat::Store templates;
  std::vector<std::string> special_tokens;  // texts of all that are special
  std::optional<EdgeToken> bos, eos;

  // The tokenizer.json of a folder, with the templates that the option chat_template of `table`
  // asks for (Store::open). Throws Error(bad_tokenizer), Error(bad_template).
  static std::shared_ptr<const Language> read(const std::string& folder,
                                              const std::string& chat_template,
                                              const std::string& table = "dataset.jsonl");
};

// A row as it is seen by people: its text, where its tokens lie in it.
struct Encoded {
  std::string text;
  std::vector<Bytes> ranges;  // of each id
  Document document;
  StoreCounts counts;  // rows = 1
};

// Immutable; used by several threads at once.
class RowEncoder {
 public:
  RowEncoder(std::shared_ptr<const Language> language, EncodeSettings settings);
  // `where` is "FILE:LINE". Throws Error(bad_template | bad_dataset) "FILE:LINE: what".
  Encoded encode(const Row& row, const std::string& where) const;

 private:
  Encoded encode_chat(const Row& row, const std::string& where) const;
  Encoded encode_text(const Row& row, const std::string& where) const;
  // encode_ranges() with what the row wrote as settings_.special says.
  tokenizer::Encoded encode_row(std::string_view text, bool special, std::span<const Bytes> written,
                                const std::string& where) const;
  std::shared_ptr<const Language> language_;
  EncodeSettings settings_;
};

}  // namespace meshwright::jsonl
