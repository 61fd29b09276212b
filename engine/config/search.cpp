// Keys that have to do with a word: by their name, an older or foreign name, a value they take, or
// their description.
#include <algorithm>

#include "engine/config/describe.h"
#include "engine/config/foreign.h"
#include "meshwright/dtype.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::config {
namespace {

enum class Via : uint8_t { whole_name, name, other_name, choices, text, none };
constexpr const char* kVia[] = {"name", "name", "other name", "choices", "text", ""};

// Whether `text` has `word` where a word of its own begins: "len" in "seq_len", but not in
// "silent". Longer words are found anywhere in a name.
bool holds(std::string_view text, const std::string& word, bool anywhere = false) {
  std::string plain = text::normal(text);
  for (size_t at = 0; (at = plain.find(word, at)) != std::string::npos; ++at)
    if (anywhere || at == 0 || !text::is_alphanumeric(plain[at - 1])) return true;
  return false;
}

bool is_dtype(const std::string& word) {
  try {
    parse_dtype(word);
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool takes(const meshwright_option& option, const std::string& word) {
  if ((option.flags & MESHWRIGHT_DTYPE) != 0 && is_dtype(word)) return true;
  std::vector<std::string> choices = text::split_names(option.choices, '|');
  return std::any_of(choices.begin(), choices.end(),
                     [&](const std::string& choice) { return text::normal(choice) == word; });
}

Via how_found(const std::string& key, const meshwright_option& option, const std::string& word) {
  constexpr size_t kLong = 4;
  if (word == option.name) return Via::whole_name;
  if (holds(key, word, word.size() >= kLong)) return Via::name;
  for (const std::string& alias : text::split_names(option.aliases, '|'))
    if (holds(alias.substr(0, alias.find('{')), word, word.size() >= kLong)) return Via::other_name;
  for (const ForeignName& name : foreign_names())
    if (key == name.key && holds(name.name, word)) return Via::other_name;
  if (takes(option, word)) return Via::choices;
  return holds(option.doc, word) ? Via::text : Via::none;
}

}  // namespace

Matches search_options(const std::string& what, const PluginSchemas& plugins) {
  Matches out;
  const ForeignName* foreign = find_foreign(what);
  if (foreign != nullptr) out.told = foreign_text(*foreign, what);
  std::vector<std::string> words = text::split_names(text::normal(what).c_str(), ' ');
  if (words.empty()) return out;
  std::vector<std::pair<Via, Match>> found;
  for (const OptionSchema& schema : all_schemas(plugins))
    for (const meshwright_option* option : schema.options) {
      std::string key = schema.table.empty() ? option->name : schema.table + "." + option->name;
      // Every word has to be found; the weakest of them decides the place. What another program's
      // name stands for comes first.
      Via via = Via::whole_name;
      for (const std::string& word : words) via = std::max(via, how_found(key, *option, word));
      if (foreign != nullptr && key == foreign->key) via = Via::name;
      if (via != Via::none)
        found.emplace_back(via, Match{key, kVia[static_cast<size_t>(via)], schema.owner, option});
    }
  auto first = [&](const Match& match) { return foreign != nullptr && match.key == foreign->key; };
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
    return std::pair(!first(a.second), a.first) < std::pair(!first(b.second), b.first);
  });
  for (auto& [via, match] : found) out.keys.push_back(std::move(match));
  return out;
}

}  // namespace meshwright::config
