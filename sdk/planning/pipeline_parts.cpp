#include "pipeline_parts.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "sdk/base/text.h"

namespace meshwright::pipeline {

Error bad(std::string message, std::string_view key) {
  return Error(ErrorCode::bad_pipeline, std::move(message)).key(std::string(key));
}

std::string counted(int64_t count, std::string_view word, std::string_view plural_ending) {
  return std::to_string(count) + " " + std::string(word) +
         std::string(count == 1 ? std::string_view() : plural_ending);
}

std::string set_line(std::string_view key, std::string_view value) {
  return "set " + std::string(key) + " = " + std::string(value);
}

int64_t layer_number(std::string_view module) {
  size_t dot = module.rfind('.');
  std::string_view last = dot == std::string_view::npos ? module : module.substr(dot + 1);
  int64_t number = -1;
  auto [end, failure] = std::from_chars(last.data(), last.data() + last.size(), number);
  return failure == std::errc() && end == last.data() + last.size() ? number : -1;
}

Parts split_model(const ModelOutline& outline) {
  // Items of each list that is not itself inside an item of another.
  std::map<std::string, std::vector<std::string>, std::less<>> items;
  for (const ModuleOutline& module : outline.modules)
    if (module.kind == ModuleKind::list &&
        std::none_of(items.begin(), items.end(),
                     [&](const auto& list) { return text::lies_under(module.name, list.first); }))
      items[module.name];
  for (const ModuleOutline& module : outline.modules)
    if (auto list = items.find(module_of(module.name));
        list != items.end() && layer_number(module.name) >= 0)
      list->second.push_back(module.name);
  auto list = items.find(outline.inner_prefix.empty() ? std::string("layers")
                                                      : outline.inner_prefix + ".layers");
  if (list == items.end())
    list = std::max_element(items.begin(), items.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
  if (list == items.end() || list->second.empty())
    throw bad("the model " + outline.architecture + " has no list of layers to cut into stages",
              kSizeKey)
        .help(set_line(kSizeKey, "1"));

  Parts parts;
  parts.layers = list->second;
  const std::string& name = list->first;
  bool before = true;
  for (const ModuleOutline& module : outline.modules) {
    if (module.name == name) before = false;
    // A part is a direct child of a module that encloses the list, and does not enclose it itself.
    std::string_view above = module_of(module.name);
    if (module.name.empty() || module.name == name || text::lies_under(name, module.name) ||
        !(above.empty() || text::lies_under(name, above)))
      continue;
    if (module.kind == ModuleKind::rotary)
      parts.everywhere.push_back(module.name);
    else if (before || module.kind == ModuleKind::embedding)
      parts.first.push_back(module.name);
    else
      parts.last.push_back(module.name);
  }
  return parts;
}

void check_parts(const ModelOutline& outline, const Parts& parts, const StringTable& given) {
  std::vector<std::string> known = parts.layers;
  for (const auto* more : {&parts.first, &parts.last, &parts.everywhere})
    known.insert(known.end(), more->begin(), more->end());
  std::map<std::string, size_t> part_of;
  for (size_t p = 0; p < given.size(); ++p)
    for (const std::string& name : given[p]) {
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        bool exists = outline.find_module(name) != nullptr;
        Error error = bad("part " + std::to_string(p) + " names " + text::quote(name) +
                              (exists ? ", which is not a whole layer or a module beside the layers"
                                      : ", which the model does not have"),
                          kPartsKey);
        if (std::string near = nearest_name(name, known); !near.empty())
          error.help("did you mean " + text::quote(near) + "?");
        throw error.help(
            "parts are made of " + text::quote(parts.layers.front()) + " to " +
            text::quote(parts.layers.back()) +
            (known.size() > parts.layers.size()
                 ? " and of " + text::list(std::vector<std::string>(
                                               known.begin() +
                                                   static_cast<std::ptrdiff_t>(parts.layers.size()),
                                               known.end()),
                                           [](const std::string& k) { return text::quote(k); })
                 : std::string()));
      }
      bool repeats = std::find(parts.everywhere.begin(), parts.everywhere.end(), name) !=
                     parts.everywhere.end();
      if (auto [at, added] = part_of.emplace(name, p); !added && !repeats)
        throw bad(text::quote(name) + " stands in parts " + std::to_string(at->second) + " and " +
                      std::to_string(p),
                  kPartsKey)
            .help("remove " + text::quote(name) + " from part " + std::to_string(p))
            .help("remove " + text::quote(name) + " from part " + std::to_string(at->second));
    }
  // The first stage reads ids and the last one gives the loss.
  auto stands_in = [&](const std::vector<std::string>& names, size_t wanted, const char* where) {
    for (const std::string& name : names)
      if (auto found = part_of.find(name); found != part_of.end() && found->second != wanted)
        throw bad(text::quote(name) + " stands in part " + std::to_string(found->second) +
                      ", but " + where + " runs it",
                  kPartsKey)
            .help("move " + text::quote(name) + " to part " + std::to_string(wanted))
            .help("leave out " + std::string(kPartsKey) +
                  " and let the layers be dealt out evenly");
  };
  stands_in(parts.first, 0, "the first stage");
  stands_in(parts.last, given.size() - 1, "the last stage");
  // A head that shares the embedding's weight has no parameter of its own.
  for (const std::string& name : parts.last)
    if (outline.tied_embeddings && outline.find_module(name)->kind == ModuleKind::linear &&
        !part_of.contains(name))
      throw bad(text::quote(name) + " is in no part, so nothing would give the logits", kPartsKey)
          .help("add " + text::quote(name) + " to the last part")
          .help("leave out " + std::string(kPartsKey) + " and let the layers be dealt out evenly");
  for (const ParameterOutline& parameter : outline.parameters)
    for (const std::string& name : known)
      if (text::lies_under(parameter.name, name) && !part_of.contains(name)) {
        bool last = std::find(parts.last.begin(), parts.last.end(), name) != parts.last.end();
        throw bad(text::quote(name) + " is in no part, so its weights would be lost", kPartsKey)
            .help("add " + text::quote(name) + " to " +
                  (layer_number(name) >= 0 ? "a part, in order"
                   : last                  ? "the last part"
                                           : "part 0"))
            .help("leave out " + std::string(kPartsKey) +
                  " and let the layers be dealt out evenly");
      }
}

}  // namespace meshwright::pipeline
