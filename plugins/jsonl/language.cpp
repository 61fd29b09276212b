// What is saved beside a model that was tuned with other files than its own.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "kind.h"

namespace meshwright::jsonl {

std::vector<LanguageFile> JsonlKind::language(const DatasetRequest& request) const {
  namespace fs = std::filesystem;
  const JsonlOptions options = JsonlOptions::read(request);
  std::vector<LanguageFile> out;
  if (request.options.is_set("tokenizer"))
    for (const std::string& file : options.language_files())
      if (file != options.chat_template)
        out.push_back({fs::path(file).lexically_relative(options.folder).generic_string(), file});
  if (options.chat_template.empty()) return out;
  const chat::Store store =
      chat::Store::open(options.folder, options.chat_template, options.table + ".chat_template");
  LanguageFile chosen{"chat_template.jinja", "", store.choose(false).text()};
  // Others of the tokenizer's folder would go before it: transformers takes tool_use for rows with
  // tools.
  std::erase_if(out, [&](const LanguageFile& file) {
    return file.name == chosen.name || file.name.starts_with("additional_chat_templates/");
  });
  out.push_back(std::move(chosen));
  return out;
}

}  // namespace meshwright::jsonl
