// Folders as Hugging Face lays them out, downloads in its cache among them.
#include <algorithm>
#include <boost/json/value.hpp>

#include "engine/checkpoint/weights/links.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/models/other_format.h"
#include "sdk/base/files/strict_json.h"

namespace meshwright::weights {

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int64_t kMaxIndex = 256 << 20;

[[noreturn]] void damaged(const fs::path& index, int64_t at, const std::string& what) {
  throw Error(ErrorCode::bad_safetensors,
              index.string() + ": byte " + std::to_string(at) + ": " + what)
      .help("fetch or copy the file again")
      .help("export the model anew (save_pretrained writes the index)");
}

void check_link(const fs::path& folder, const fs::path& file) {
  std::optional<fs::path> real = leads_out(folder, file);
  if (!real) return;
  throw Error(ErrorCode::bad_safetensors,
              file.string() + " is a link that leads out of the folder, to " + real->string())
      .help("copy the file into the folder: cp --remove-destination '" + real->string() + "' '" +
            file.string() + "'")
      .help("or name the folder that holds the files themselves");
}

}  // namespace

WeightFolder::WeightFolder(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) {
    if (path.extension() == ".json" && fs::is_regular_file(path, failed))
      throw Error(ErrorCode::bad_safetensors, path.string() + " is no file of weights")
          .help("name its folder, " + (path.has_parent_path() ? path.parent_path() : ".").string());
    add(path, nullptr);
    return;
  }
  fs::path single = path / "model.safetensors", index = path / "model.safetensors.index.json";
  if (fs::exists(single, failed)) {
    check_link(path, single);
    add(single, nullptr);
    return;
  }
  if (!fs::exists(index, failed)) {
    Error none(ErrorCode::bad_safetensors,
               path.string() + " has neither model.safetensors nor model.safetensors.index.json");
    if (std::optional<std::string> help = base::own_folder_help(path)) none.help(*help);
    if (std::optional<std::string> help = base::other_format_help(path)) none.help(*help);
    throw none.help("export the model in safetensors format (save_pretrained does)");
  }
  check_link(path, index);
  base::MappedFile file(index.string(), ErrorCode::bad_safetensors);
  if (file.size() > kMaxIndex) damaged(index, 0, "the index is larger than 256 MiB");
  json::value parsed;
  try {
    parsed = base::parse_strictly(
        {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, {});
  } catch (const base::JsonProblem& problem) {
    damaged(index, problem.offset, "the index " + problem.what);
  }
  const json::value* map =
      !parsed.is_object() ? nullptr : parsed.as_object().if_contains("weight_map");
  if (map == nullptr || !map->is_object())
    damaged(index, 0, "the index is not a JSON object with a weight_map");
  std::map<std::string, std::map<std::string, std::string>> by_file;
  for (const auto& item : map->as_object()) {
    if (!item.value().is_string())
      damaged(index, 0, "weight_map names no file for \"" + std::string(item.key()) + "\"");
    std::string target(item.value().as_string());
    fs::path relative(target);
    bool plain =
        !target.empty() && target.find('\0') == std::string::npos && !relative.is_absolute();
    for (const fs::path& part : relative) plain = plain && part != "..";
    if (!plain)
      damaged(index, 0, "weight_map names \"" + target + "\", which leads out of the folder");
    if (!target.ends_with(".safetensors"))
      damaged(index, 0, "weight_map names \"" + target + "\", which is no safetensors file");
    by_file[target].emplace(item.key(), target);
  }
  for (const auto& [target, names] : by_file) {
    if (!fs::exists(path / target, failed))
      throw Error(ErrorCode::bad_safetensors,
                  index.string() + " names " + target + ", which is not there")
          .help("fetch the missing file");
    check_link(path, path / target);
    add(path / target, &names);
  }
}

void WeightFolder::add(const fs::path& path, const std::map<std::string, std::string>* index) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const TensorEntry& entry : files_.back()->tensors()) {
    if (index && !index->contains(entry.name)) continue;
    if (!tensors_.emplace(entry.name, &entry).second)
      damaged(path, entry.offset, "tensor \"" + entry.name + "\" is in two files");
  }
  if (!index) return;
  for (const auto& [name, target] : *index)
    if (!tensors_.contains(name))
      damaged(path, 8, "the index says that tensor \"" + name + "\" is here, and it is not");
}

const TensorEntry* WeightFolder::find(std::string_view name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

std::vector<std::string> WeightFolder::names() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : tensors_) out.push_back(name);
  return out;
}

}  // namespace meshwright::weights
