#include "cases.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "meshwright/error.h"

namespace meshwright::chat::testing {

std::string file_text(const std::string& name) {
  std::ifstream in(std::string(MESHWRIGHT_SOURCE_DIR) + "/sdk/text/chat/tests/" + name,
                   std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + name);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

const Value& golden() {
  static const Value kGolden = parse_json(file_text("chat-golden.json"));
  return kGolden;
}

std::string text(const Value& of, const char* key) {
  const Value* found = of.get(key);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

bool is_set(const Value& of, const char* key) {
  const Value* found = of.get(key);
  return found != nullptr && found->is_boolean() && found->as_boolean();
}

Conversation::Conversation(const Value& one_case)
    : form(golden().get("templates")->get(text(one_case, "template"))) {
  request.messages = golden().get("conversations")->get(text(one_case, "conversation"));
  if (is_set(one_case, "tools")) request.tools = golden().get("tools");
  request.add_generation_prompt = is_set(one_case, "add_generation_prompt");
  request.variables = one_case.get("variables");
  for (const char* key : {"bos_token", "eos_token"})
    if (const Value* token = form->get(key); token != nullptr && token->is_string())
      request.special_tokens.emplace_back(key, token->as_string());
  for (const Value& token : form->get("special_tokens")->as_list())
    special_tokens.push_back(token.as_string());
}

std::string rendered(const std::string& source, const Value* variables) {
  ChatTemplate::Request request;
  request.variables = variables;
  request.date = Date{2024, 7, 26, 13, 5, 9};
  return ChatTemplate::parse(source, "t").render(request).text;
}

std::optional<std::string> refusal(const std::string& source, const Value* variables) {
  try {
    rendered(source, variables);
  } catch (const Error& error) {
    return error.code() == ErrorCode::bad_template ? error.message() : "another code";
  }
  return std::nullopt;
}

}  // namespace meshwright::chat::testing
