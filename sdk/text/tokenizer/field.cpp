#include "sdk/text/tokenizer/field.h"

#include <boost/json/serialize.hpp>
#include <limits>

#include "meshwright/error.h"
#include "sdk/text/tokenizer/normalize.h"

namespace meshwright::tokenizer {

namespace json = boost::json;

void refuse(const std::string& file, const std::string& place, const std::string& what) {
  throw Error(ErrorCode::bad_tokenizer, file + ": " + place + " " + what)
      .help(
          "the parts of a tokenizer.json that the tokenizers library has are read, of BPE, "
          "Unigram, "
          "WordPiece and WordLevel: put the file that the model was published with in its place, "
          "or "
          "save it again with transformers: AutoTokenizer.from_pretrained(FOLDER)"
          ".save_pretrained(FOLDER)")
      .help("token ids work with any model: meshwright generate FOLDER --tokens 1,2,3");
}

std::string shown(std::string_view text) {
  bool cut = text.size() > 60;
  if (cut) {
    text = text.substr(0, 60);
    text = text.substr(0, first_invalid(text));
  }
  return json::serialize(json::value(json::string_view(text.data(), text.size()))) +
         (cut ? "..." : "");
}

Field Field::at(std::string_view key) const {
  const json::object& here = object();
  const json::value* found = here.if_contains(json::string_view(key.data(), key.size()));
  return {*file_, found, place_.empty() ? std::string(key) : place_ + "." + std::string(key)};
}

Field Field::at(size_t index) const {
  return {*file_, &array()[index], place_ + "[" + std::to_string(index) + "]"};
}

void Field::wrong(const char* wanted) const {
  refuse(value_ == nullptr ? std::string("is missing; it must be ") + wanted
                           : std::string("must be ") + wanted + ", not " +
                                 std::string(json::to_string(value_->kind())));
}

const json::object& Field::object() const {
  if (value_ == nullptr || !value_->is_object()) wrong("an object");
  return value_->get_object();
}

const json::array& Field::array() const {
  if (value_ == nullptr || !value_->is_array()) wrong("a list");
  return value_->get_array();
}

std::string_view Field::string() const {
  if (value_ == nullptr || !value_->is_string()) wrong("a string");
  const json::string& text = value_->get_string();
  return {text.data(), text.size()};
}

uint32_t Field::id() const {
  if (value_ != nullptr && value_->is_int64()) {
    int64_t number = value_->get_int64();
    if (number >= 0 && number <= std::numeric_limits<int32_t>::max())
      return static_cast<uint32_t>(number);
  }
  if (value_ != nullptr && value_->is_number())
    refuse("is " + json::serialize(*value_) + "; an id is a whole number from 0 to 2147483647");
  wrong("a whole number");
}

bool Field::boolean() const {
  if (value_ == nullptr || !value_->is_bool()) wrong("true or false");
  return value_->get_bool();
}

int32_t Field::character() const {
  const std::string_view text = string();
  if (text.empty() || character_at(text, 0).bytes != text.size())
    refuse("is " + shown(text) + "; it must be one character");
  return character_at(text, 0).code;
}

double Field::number() const {
  if (value_ == nullptr || !value_->is_number()) wrong("a number");
  return value_->to_number<double>();
}

void refuse_kind(const Field& field, std::string_view known) {
  field.refuse("is of the kind " + shown(field.type()) + "; those read here are " +
               std::string(known));
}

}  // namespace meshwright::tokenizer
