// Which columns of a file are which parts of a row: by names that are known, or by those that the
// option `fields` gives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/unpack/unpacked_file.h"
#include "sdk/text/chat/value.h"

namespace meshwright::jsonl {

enum class RowKind : uint8_t { messages, prompt_completion, text };
// "messages", ...: as the option `format` has them.
std::string_view name_of(RowKind kind);

// `error`, whose message begins with "FILE:LINE" or "FILE:LINE:COLUMN", with that as its place.
// `where` is "FILE:LINE"; column 0: none.
Error at_row(Error error, std::string_view where, int64_t column = 0);
// Error(bad_dataset) "FILE:LINE: what", at that place.
Error refused_row(const std::string& where, const std::string& what);

// A member that is there, and not null.
const chat::Value* member(const chat::Value& row, std::string_view key);

// Where a row has one of its parts: the path of a column, "data.question" or "answers.0.text", or a
// text that columns are put into, "{instruction}\n\n{input?}". A name with ? may be absent.
class Field {
 public:
  Field() = default;  // not given
  // `part`: which it is of `fields`, for messages. Throws std::string: what is wrong.
  static Field parse(std::string_view text, std::string part);

  bool given() const { return !pieces_.empty(); }
  bool joins() const { return joins_; }  // a text that columns are put into
  const std::string& part() const { return part_; }
  // "data.question"; of a text the first column in it.
  const std::string& name() const { return pieces_.front().path; }
  // Those of the row that it looks at: "instruction, input".
  std::string columns(const chat::Value& row) const;
  // Whether it looks at this key of a row.
  bool reads(std::string_view key) const;
  void add_paths(std::vector<base::Columns::Path>& to) const;
  // Of a path: nullptr where it is null, or absent and may be. Throws Error(bad_dataset) where it
  // is absent; `table`: of the options, for messages.
  const chat::Value* value(const chat::Value& row, const std::string& where,
                           const std::string& table) const;
  // As a string; of a text, columns that are absent, null or "" are left out with what stands
  // before them in it, and blanks in front of the first that is not. Throws Error(bad_dataset) for
  // what is no string and, unless `numbers`, no number.
  std::string text(const chat::Value& row, const std::string& where, const std::string& table,
                   bool numbers = true) const;

 private:
  struct Piece {
    std::string before, path;
    bool optional = false;
  };
  const chat::Value* find(const chat::Value& row, const Piece& piece, const std::string& where,
                          const std::string& table) const;
  std::vector<Piece> pieces_;
  std::string after_, part_;
  bool joins_ = false;
};

// What the options say of rows.
struct Asked {
  std::optional<RowKind> format;  // none: what the first row holds
  Field prompt, completion, system, messages, text, weight;
  std::string table = "dataset.jsonl";  // of the options, for messages

  // Sets a part by its name in `fields`. Throws Error(unknown_key | bad_choice).
  void set(const std::string& part, const std::string& value);
  // Throws Error(conflict) for parts that are of no one row, and of another format.
  void check() const;
  // Which columns are read where a file has columns: those that `fields` names and what else rows
  // are looked at for; all of them unless it names a whole row.
  base::Columns columns() const;
};

// How the rows of a data set are read; the first one decides.
struct Form {
  enum class Shape : uint8_t { conversation, pair, text };
  // A shape with the names that it was known by: keys of kConversations, or of kPrompts and
  // kCompletions.
  struct Reading {
    Shape shape = Shape::text;
    size_t key = 0, prompt = 0, completion = 0;
    bool operator==(const Reading&) const = default;
  };
  Reading reading;
  bool by_fields = false;
  Field prompt, completion, system, messages, text, weight;  // messages: not given, by reading.key
  bool chats = false;    // a pair of strings is a message of the user and an answer
  bool history = false;  // earlier turns in "history", pairs of strings
  std::optional<RowKind> format;
  std::string table = "dataset.jsonl";
  std::string told;  // what its columns become, in a line; "": they are named as the parts

  Shape shape() const { return reading.shape; }
};

// Throws Error(bad_dataset) where the row is of no form that is known, of several, or not of the
// one that is asked for.
Form form_of(const chat::Value& row, const Asked& asked, const std::string& where);
// Throws Error(bad_dataset) where this row is of another form that is known.
void check_form(const chat::Value& row, const Form& form, const std::string& where);
// The key of the row that holds its messages, where `form` names no column for them.
std::string conversation_key(const chat::Value& row, const Form& form);

}  // namespace meshwright::jsonl
