// A row of data: a conversation, a prompt with its completion, or a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/chat/value.h"

namespace meshwright::jsonl {

enum class RowKind : uint8_t { messages, prompt_completion, text };
// "messages", ...: as the option `format` has them.
std::string_view name_of(RowKind kind);

struct Row {
  RowKind kind = RowKind::text;
  // messages, and prompt_completion of lists, one behind the other.
  chat::Value messages = chat::Value::list();
  chat::Value tools;                    // a list; none: there are none
  std::vector<bool> trained;            // of each message: whether its turn has a part in the loss
  std::optional<size_t> completion_at;  // the first message of the completion
  // prompt_completion of strings; text is all completion.
  std::string prompt, completion;
};

// What kind of row it is by its keys, those that are null aside; none: of no kind.
std::optional<RowKind> kind_of(const chat::Value& row);

// `where` is "FILE:LINE". `wanted`: the kind that rows have; `table`: of the options, for messages.
// Throws Error(bad_dataset) and, for a weight that is neither 0 nor 1, Error(out_of_range), both
// "FILE:LINE: what".
Row read_row(const chat::Value& row, RowKind wanted, const std::string& where,
             const std::string& table = "dataset.jsonl");

// parse_json() of a row that begins on a line, its errors with that place. What is not UTF-8 is
// told as that.
chat::Value parse_row(std::string_view text, const std::string& file, int64_t line);

}  // namespace meshwright::jsonl
