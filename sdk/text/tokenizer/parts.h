// What a tokenizer is made of, as its file lists it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sdk/text/tokenizer/added_tokens.h"
#include "sdk/text/tokenizer/decoders.h"
#include "sdk/text/tokenizer/model.h"
#include "sdk/text/tokenizer/normalizers.h"
#include "sdk/text/tokenizer/pre_tokenizers.h"
#include "sdk/text/tokenizer/template.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

struct Tokenizer::Parts {
  std::string name;
  std::unique_ptr<Model> model;
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  bool needs_begins = false;  // a step must know where in the text a piece begins
  std::deque<AddedToken> added;
  std::unordered_map<uint32_t, const AddedToken*> added_by_id;
  std::unordered_map<std::string_view, const AddedToken*> added_by_content;
  TokenFinder verbatim, normalized;
  std::optional<Template> around;
  Decoders decoders;
  Cuts cuts;
  std::vector<std::string> notes;

  int64_t size() const;  // one above the largest id
};

}  // namespace meshwright::tokenizer
