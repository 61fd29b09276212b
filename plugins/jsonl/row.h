// A row of data: a conversation, a prompt with its completion, or a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "columns.h"
#include "sdk/text/chat/value.h"

namespace meshwright::jsonl {

struct Row {
  RowKind kind = RowKind::text;
  // messages, and prompt_completion of lists, one behind the other.
  chat::Value messages = chat::Value::list();
  std::vector<std::string> names;       // of each, as the row has it: "messages[3]", "question"
  bool own_system = false;              // the first of them is the row's system text
  bool of_strings = false;              // a prompt and a completion that are strings
  int64_t renamed = 0;                  // roles that have other names in the row
  chat::Value tools;                    // a list, also an empty one; none: the row has no key
  chat::Value variables;                // a dict: "chat_template_kwargs"; none: the row has no key
  float weight = 1;                     // of its targets in the loss
  std::vector<std::string> unread;      // keys of the row, not null, that nothing was made of
  std::vector<bool> trained;            // of each message: whether its turn has a part in the loss
  std::optional<size_t> completion_at;  // the first message of the completion
  // prompt_completion of strings; text is all completion.
  std::string prompt, completion;
};

// `where` is "FILE:LINE". Throws Error(bad_dataset) and, for a weight that is none, for a turn
// neither 0 nor 1, Error(out_of_range), both "FILE:LINE: what", at that place.
Row read_row(const chat::Value& row, const Form& form, const std::string& where);

// parse_json() of a row that begins at a line and a column, its errors at that place. What is not
// UTF-8 is told as that; so are an object that does not end, and no row at all.
chat::Value parse_row(std::string_view text, const std::string& file, int64_t line,
                      int64_t column = 1);

}  // namespace meshwright::jsonl
