// What may be done about a row that a chat template refuses.
#pragma once

#include <string>
#include <vector>

#include "row.h"
#include "sdk/text/chat/chat_template.h"

namespace meshwright::jsonl {

// Helps for an error of `chat` (nullptr: it could not be read) over `row`, whose messages `request`
// has. `message` is that of the error, `table` that of the options.
std::vector<std::string> template_help(const std::string& message, const chat::ChatTemplate* chat,
                                       const chat::ChatTemplate::Request& request, const Row& row,
                                       const std::string& table);

}  // namespace meshwright::jsonl
