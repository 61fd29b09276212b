// The cases of chat-golden.json and semantics.json as requests.
#pragma once

#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "sdk/text/chat/chat_template.h"
#include "sdk/text/chat/value.h"

namespace meshwright::chat::testing {

// A file of this folder.
inline std::string file_text(const std::string& name) {
  std::ifstream in(std::string(MESHWRIGHT_SOURCE_DIR) + "/sdk/text/chat/tests/" + name,
                   std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + name);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline const Value& golden() {
  static const Value kGolden = parse_json(file_text("chat-golden.json"));
  return kGolden;
}

inline std::string text(const Value& of, const char* key) {
  const Value* found = of.get(key);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}

inline bool is_set(const Value& of, const char* key) {
  const Value* found = of.get(key);
  return found != nullptr && found->is_boolean() && found->as_boolean();
}

// What a case of golden() asks for; the values must outlive it.
struct Conversation {
  explicit Conversation(const Value& one_case)
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
  const Value* form;  // the template's entry
  ChatTemplate::Request request;
  std::vector<std::string> special_tokens;
};

inline std::string rendered(const std::string& source, const Value* variables = nullptr) {
  ChatTemplate::Request request;
  request.variables = variables;
  request.date = Date{2024, 7, 26, 13, 5, 9};
  return ChatTemplate::parse(source, "t").render(request).text;
}

// The message of the error that rendering ends with, or nothing.
inline std::optional<std::string> refusal(const std::string& source,
                                          const Value* variables = nullptr) {
  try {
    rendered(source, variables);
  } catch (const Error& error) {
    return error.code() == ErrorCode::bad_template ? error.message() : "another code";
  }
  return std::nullopt;
}

}  // namespace meshwright::chat::testing
