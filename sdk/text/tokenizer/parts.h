// The fields of a tokenizer.json, each with its place for messages.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "meshwright/error.h"
#include "sdk/text/tokenizer/added_tokens.h"
#include "sdk/text/tokenizer/bpe.h"
#include "sdk/text/tokenizer/divide.h"
#include "sdk/text/tokenizer/tokenizer.h"

namespace meshwright::tokenizer {

// Throws Error(bad_tokenizer): "FILE: PLACE WHAT", with which kinds are read as its help.
[[noreturn]] void refuse(const std::string& file, const std::string& place,
                         const std::string& what);

// The value must outlive it.
class Field {
 public:
  Field(const std::string& file, const boost::json::value* value, std::string place)
      : file_(&file), value_(value), place_(std::move(place)) {}
  const std::string& place() const { return place_; }
  const std::string& file() const { return *file_; }
  [[noreturn]] void refuse(const std::string& what) const {
    tokenizer::refuse(*file_, place_.empty() ? "the file" : place_, what);
  }

  bool absent() const { return value_ == nullptr || value_->is_null(); }
  Field at(std::string_view key) const;  // absent where the object lacks it
  Field at(size_t index) const;

  // Each refuses a value of another kind.
  const boost::json::object& object() const;
  const boost::json::array& array() const;
  std::string_view string() const;
  uint32_t id() const;  // a whole number below 2^31
  bool boolean() const;
  bool boolean_or(bool otherwise) const { return absent() ? otherwise : boolean(); }
  std::string_view type() const { return at("type").string(); }

 private:
  [[noreturn]] void wrong(const char* wanted) const;
  const std::string* file_;
  const boost::json::value* value_;
  std::string place_;
};

// "\"a\"", cut short and without control characters.
std::string shown(std::string_view text);

// What a tokenizer is made of, as its file lists it.

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
