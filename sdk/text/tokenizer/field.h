// The fields of a tokenizer.json, each with its place for messages.
#pragma once

#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

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
  std::string string_or(std::string_view otherwise) const {
    return std::string(absent() ? otherwise : string());
  }
  int32_t character() const;  // the one character of a string
  double number() const;
  std::string_view type() const { return at("type").string(); }

 private:
  [[noreturn]] void wrong(const char* wanted) const;
  const std::string* file_;
  const boost::json::value* value_;
  std::string place_;
};

// "\"a\"", cut short and without control characters.
std::string shown(std::string_view text);

// "KIND is of the kind X; those read here are KNOWN".
[[noreturn]] void refuse_kind(const Field& field, std::string_view known);

// A Sequence's members, which it lists under `members`, or the field itself; what one of them is,
// is for `read`.
template <class Read>
void each(const Field& field, const char* members, const Read& read) {
  if (field.absent()) return;
  if (field.type() != "Sequence") return read(field);
  const Field list = field.at(members);
  for (size_t i = 0; i < list.array().size(); ++i) each(list.at(i), members, read);
}

}  // namespace meshwright::tokenizer
