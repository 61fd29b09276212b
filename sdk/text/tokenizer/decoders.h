// What makes text of tokens: the decoder of a tokenizer.json.
//
// Decoders stand in a row. Each takes tokens and hands on others, as they come; what it cannot know
// yet, it keeps back. From one that fuses them on, all tokens are one, which comes in parts.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/text/tokenizer/field.h"

namespace meshwright::tokenizer {

// Takes the tokens of one text.
class DecodeStage {
 public:
  explicit DecodeStage(std::unique_ptr<DecodeStage> next) : next_(std::move(next)) {}
  virtual ~DecodeStage() = default;
  // Valid UTF-8. A token, or a part of the only one. Throws PatternProblem.
  virtual void put(std::string_view token) = 0;
  virtual void finish() { next_->finish(); }

 protected:
  DecodeStage& next() { return *next_; }

 private:
  std::unique_ptr<DecodeStage> next_;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // This decoder at work on one text, before `next`. It must outlive that. whole: its tokens are
  // parts of one.
  virtual std::unique_ptr<DecodeStage> begin(std::unique_ptr<DecodeStage> next,
                                             bool whole) const = 0;
  virtual bool fuses() const { return false; }  // what it hands on is one token
};

// In their order.
using Decoders = std::vector<std::unique_ptr<Decoder>>;

// `tokens`: all there are. Throws Error(bad_tokenizer).
Decoders read_decoder(const Field& decoder, const std::vector<std::string_view>& tokens);

// All of them in a row, that append to `out`, which must outlive it.
std::unique_ptr<DecodeStage> begin_decoding(const Decoders& decoders, std::string& out);

}  // namespace meshwright::tokenizer
