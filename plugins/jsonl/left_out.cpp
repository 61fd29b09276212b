#include "left_out.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::jsonl {

namespace {

using chat::ChatTemplate;
using chat::Value;

bool is_call_key(std::string_view key) { return key == "tool_calls" || key == "function_call"; }

// The calls of a message, which hold names where they are as they should be.
std::vector<const Value*> calls_of(const Value& message) {
  std::vector<const Value*> out;
  for (const auto& [key, value] : message.as_dict()) {
    if (!is_call_key(key) || value.is_none()) continue;
    if (!value.is_list()) {
      out.push_back(&value);
      continue;
    }
    for (const Value& call : value.as_list()) out.push_back(&call);
  }
  return out;
}

Value without_calls(const Value& message) {
  Value::Dict out;
  for (const auto& member : message.as_dict())
    if (!is_call_key(member.first)) out.push_back(member);
  return Value::dict(std::move(out));
}

// The template writes the same text of other messages. One that refuses these has looked.
bool same_text(const ChatTemplate& chat, ChatTemplate::Request request, const Value& messages,
               const std::string& text) {
  request.messages = &messages;
  try {
    return chat.render(request).text == text;
  } catch (const Error&) {
    return false;
  }
}

// What a message left in the text names all functions that it calls.
bool names_all(const ChatTemplate::Rendered& rendered, size_t message,
               const std::vector<const Value*>& calls) {
  std::string said;
  for (const ChatTemplate::Origin& origin : rendered.origins)
    if (static_cast<size_t>(origin.message) == message)
      said += rendered.text.substr(origin.begin, origin.end - origin.begin) + "\n";
  for (const Value* call : calls) {
    const Value* function = call->get("function");
    const Value* name = (function != nullptr ? function : call)->get("name");
    if (name == nullptr || !name->is_string() || said.find(name->as_string()) == std::string::npos)
      return false;
  }
  return true;
}

}  // namespace

void count_left_out(const ChatTemplate& chat, const ChatTemplate::Request& request,
                    const ChatTemplate::Rendered& rendered, StoreCounts& counts) {
  if (request.tools != nullptr && !request.tools->as_list().empty() && rendered.tools.empty())
    ++counts.tools_left_out;
  const Value::List& messages = request.messages->as_list();
  std::vector<std::pair<size_t, std::vector<const Value*>>> calling;
  int64_t all = 0;
  for (size_t i = 0; i < messages.size(); ++i)
    if (std::vector<const Value*> calls = calls_of(messages[i]); !calls.empty()) {
      all += static_cast<int64_t>(calls.size());
      calling.emplace_back(i, std::move(calls));
    }
  if (all == 0) return;
  Value bare = *request.messages;
  for (const auto& [i, calls] : calling) bare.as_list()[i] = without_calls(messages[i]);
  if (same_text(chat, request, bare, rendered.text)) {
    counts.calls_left_out += all;
    return;
  }
  // Some are written: most templates write all, and then each names its function.
  if (calling.size() == 1) return;
  for (const auto& [i, calls] : calling) {
    if (names_all(rendered, i, calls)) continue;
    Value one = *request.messages;
    one.as_list()[i] = without_calls(messages[i]);
    if (same_text(chat, request, one, rendered.text))
      counts.calls_left_out += static_cast<int64_t>(calls.size());
  }
}

}  // namespace meshwright::jsonl
