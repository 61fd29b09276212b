// What a tokenizer is made of, as its file lists it.
#pragma once

#include <deque>
#include <optional>
#include <unordered_map>
#include <variant>

#include "sdk/text/tokenizer/added_tokens.h"
#include "sdk/text/tokenizer/bpe.h"
#include "sdk/text/tokenizer/fields.h"
#include "sdk/text/tokenizer/split.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

// Ids before and after those of the text; the text may stand more than once.
struct TemplatePiece {
  bool text = false;
  std::vector<int64_t> ids;
};
using Template = std::vector<TemplatePiece>;

struct Tokenizer::Parts {
  std::string name;
  Bpe bpe;  // is not moved: its vocabulary points into itself
  bool composes = false;
  std::vector<Step> steps;
  std::deque<AddedToken> added;
  std::unordered_map<uint32_t, const AddedToken*> added_by_id;
  std::unordered_map<std::string_view, const AddedToken*> added_by_content;
  TokenFinder verbatim, normalized;
  std::optional<Template> around;
  int64_t stripped = 0;  // spaces that decoding takes from the beginning of a text
};

// Each reads one part of the file. Throws Error(bad_tokenizer).
void read_model(const Field& model, Bpe& bpe);
bool read_normalizer(const Field& normalizer);
std::vector<Step> read_pre_tokenizer(const Field& pre_tokenizer);
std::optional<Template> read_post_processor(const Field& post_processor);
// How many spaces it takes from the beginning of a text. `tokens`: all there are.
int64_t read_decoder(const Field& decoder, const std::vector<std::string_view>& tokens);
// Without `matched`, and with the ids that the reference gives, which must be those of the file.
std::deque<AddedToken> read_added_tokens(const Field& added, const Vocabulary& vocabulary);

}  // namespace meshwright::tokenizer
