#include "roles.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/words.h"

namespace meshwright::jsonl {

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

std::string tell_names(const StoreCounts::Names& names,
                       const std::function<std::string(const std::string&)>& remark) {
  std::vector<std::pair<std::string, int64_t>> all(names.named.begin(), names.named.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr size_t kMostTold = 5;
  std::string out;
  int64_t told = 0;
  for (size_t i = 0; i < std::min(all.size(), kMostTold); ++i) {
    const auto& [name, times] = all[i];
    out += (i == 0 ? "\"" : ", \"") + name + "\" " + text::grouped(times) + remark(name);
    told += times;
  }
  if (names.all() > told) out += ", others " + text::grouped(names.all() - told);
  return out;
}

std::string tell_roles(const StoreCounts& counts) {
  if (counts.roles.all() == 0) return {};
  return text::counted(counts.roles.all(), "message") +
         " of roles that are not known: " + tell_names(counts.roles, [](const std::string& role) {
           const std::string meant = role_meant(role);
           return meant.empty() ? std::string() : " (did you mean \"" + meant + "\"?)";
         });
}

}  // namespace meshwright::jsonl
