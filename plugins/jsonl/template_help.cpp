#include "template_help.h"

#include <string_view>

#include "meshwright/error.h"

namespace meshwright::jsonl {

namespace {

using chat::ChatTemplate;
using chat::Value;

// The variable that a message says is undefined; "": it says something else.
std::string undefined_variable(std::string_view message) {
  constexpr std::string_view kEnd = "' is undefined";
  if (!message.ends_with(kEnd)) return {};
  message.remove_suffix(kEnd.size());
  const size_t quote = message.rfind('\'');
  return quote == std::string_view::npos ? std::string() : std::string(message.substr(quote + 1));
}

bool refuses(const ChatTemplate& chat, ChatTemplate::Request request, const Value& messages) {
  request.messages = &messages;
  try {
    chat.render(request);
  } catch (const Error&) {
    return true;
  }
  return false;
}

// What a content says, as one string.
Value as_string(const Value* content) {
  std::string out;
  if (content != nullptr && content->is_list())
    for (const Value& part : content->as_list())
      if (const Value* text = part.get("text"); text != nullptr && text->is_string())
        out += text->as_string();
  return Value::string(std::move(out));
}

// Where the template would take the row if every content were a string: the first message whose
// content it does not take.
std::string content_help(const ChatTemplate& chat, const ChatTemplate::Request& request,
                         const Row& row, const std::string& table) {
  const Value::List& given = row.messages.as_list();
  Value mended = row.messages;
  std::vector<size_t> changed;
  for (size_t i = 0; i < given.size(); ++i) {
    const Value* content = given[i].get("content");
    if (content != nullptr && content->is_string()) continue;
    mended.as_list()[i].set("content", as_string(content));
    changed.push_back(i);
  }
  if (changed.empty() || refuses(chat, request, mended)) return {};
  for (const size_t i : changed) {
    Value one = mended;
    one.as_list()[i] = given[i];
    if (!refuses(chat, request, one)) continue;
    const Value* content = given[i].get("content");
    const bool texts = content != nullptr && content->is_list();
    return name_of_message(row, i) +
           (content == nullptr ? " has no \"content\""
            : texts            ? ".content is a list of texts"
                               : ".content is null") +
           ", which this template does not take: write " +
           (texts ? "its texts as one string" : "\"\" in its place") + ", or set " + table +
           ".chat_template to one that does";
  }
  return {};
}

}  // namespace

std::vector<std::string> template_help(const std::string& message, const ChatTemplate* chat,
                                       const ChatTemplate::Request& request, const Row& row,
                                       const std::string& table) {
  if (chat == nullptr) return {"mend the template, or set " + table + ".chat_template to another"};
  const std::string variable = undefined_variable(message);
  if (variable == "strftime_now")
    return {"set " + table + ".date = \"2024-07-26\": the day that strftime_now says"};
  if (std::string help = content_help(*chat, request, row, table); !help.empty()) return {help};
  if (!variable.empty())
    return {"if it is a variable of the template, set " + table + ".template_variables = { " +
            variable + " = ... }"};
  return {"change the row, or set " + table + ".chat_template to a template that takes it"};
}

}  // namespace meshwright::jsonl
