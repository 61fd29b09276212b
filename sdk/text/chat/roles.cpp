#include "sdk/text/chat/roles.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/words.h"

namespace meshwright::chat {

namespace {

constexpr std::string_view kKnownRoles[] = {"system", "developer", "user",   "assistant",
                                            "tool",   "function",  "ipython"};

// What other formats call them.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"gpt", "assistant"},        {"chatgpt", "assistant"}, {"bot", "assistant"},
    {"chatbot", "assistant"},    {"ai", "assistant"},      {"model", "assistant"},
    {"llm", "assistant"},        {"agent", "assistant"},   {"answer", "assistant"},
    {"completion", "assistant"}, {"output", "assistant"},  {"response", "assistant"},
    {"human", "user"},           {"prompter", "user"},     {"question", "user"},
    {"prompt", "user"},          {"input", "user"},        {"instruction", "system"}};

}  // namespace

std::string role_meant(std::string_view role) {
  const std::string name = text::normal(role);
  for (const auto& [other, meant] : kOtherNames)
    if (name == other) return std::string(meant);
  return nearest_name(name,
                      std::vector<std::string>(std::begin(kKnownRoles), std::end(kKnownRoles)));
}

bool is_known_role(std::string_view role, std::string_view chat_template) {
  if (std::find(std::begin(kKnownRoles), std::end(kKnownRoles), role) != std::end(kKnownRoles))
    return true;
  const std::string name(role);
  return role_meant(role) != "assistant" &&
         (chat_template.find("'" + name + "'") != std::string_view::npos ||
          chat_template.find("\"" + name + "\"") != std::string_view::npos);
}

}  // namespace meshwright::chat
