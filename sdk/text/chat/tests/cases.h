// The cases of chat-golden.json and semantics.json as requests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sdk/text/chat/chat_template.h"
#include "sdk/text/chat/value.h"

namespace meshwright::chat::testing {

std::string file_text(const std::string& name);  // of this folder
const Value& golden();
std::string text(const Value& of, const char* key);  // "" if there is none
bool is_set(const Value& of, const char* key);

// What a case of golden() asks for; the values must outlive it.
struct Conversation {
  explicit Conversation(const Value& one_case);
  const Value* form;  // the template's entry
  ChatTemplate::Request request;
  std::vector<std::string> special_tokens;
};

// The message of the error that rendering ends with, or nothing.
std::optional<std::string> refusal(const std::string& source, const Value* variables = nullptr);
std::string rendered(const std::string& source, const Value* variables = nullptr);

}  // namespace meshwright::chat::testing
