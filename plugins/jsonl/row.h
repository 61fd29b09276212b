// A row of data: a conversation, a prompt with its completion, or a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "sdk/text/chat/value.h"

namespace meshwright::jsonl {

enum class RowKind : uint8_t { messages, prompt_completion, text };
// "messages", ...: as the option `format` has them.
std::string_view name_of(RowKind kind);

struct Row {
  RowKind kind = RowKind::text;
  // messages, and prompt_completion of lists, one behind the other.
  chat::Value messages = chat::Value::list();
  std::string key = "messages";         // of the row, that holds them, or the first of them
  bool own_system = false;              // the first of them is the row's "system"
  chat::Value tools;                    // a list, also an empty one; none: the row has no key
  chat::Value variables;                // a dict: "chat_template_kwargs"; none: the row has no key
  std::vector<std::string> unread;      // keys of the row, not null, that nothing was made of
  std::vector<bool> trained;            // of each message: whether its turn has a part in the loss
  std::optional<size_t> completion_at;  // the first message of the completion
  // prompt_completion of strings; text is all completion.
  std::string prompt, completion;
};

// "messages[3]": how the row names message `number` of it.
std::string name_of_message(const Row& row, size_t number);

// `error`, whose message begins with "FILE:LINE" or "FILE:LINE:COLUMN", with that as its place.
// `where` is "FILE:LINE"; column 0: none.
Error at_row(Error error, std::string_view where, int64_t column = 0);

// What kind of row it is by its keys, those that are null aside; none: of no kind.
std::optional<RowKind> kind_of(const chat::Value& row);

// `where` is "FILE:LINE". `wanted`: the kind that rows have; `table`: of the options, for messages.
// Throws Error(bad_dataset) and, for a weight that is neither 0 nor 1, Error(out_of_range), both
// "FILE:LINE: what", at that place.
Row read_row(const chat::Value& row, RowKind wanted, const std::string& where,
             const std::string& table = "dataset.jsonl");

// parse_json() of a row that begins at a line and a column, its errors at that place. What is not
// UTF-8 is told as that; so are an object that does not end, and no row at all.
chat::Value parse_row(std::string_view text, const std::string& file, int64_t line,
                      int64_t column = 1);

}  // namespace meshwright::jsonl
