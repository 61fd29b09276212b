#include "engine/models/models.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "engine/models/families.h"
#include "meshwright/error.h"

namespace meshwright::models {
namespace {

constexpr std::uintmax_t kMaxConfigBytes = std::uintmax_t{4} << 20;

struct Entry {
  const char *architecture, *model_type;
  Family family;
};
constexpr Entry kFamilies[] = {
    {"Gemma3ForCausalLM", "gemma3_text", gemma3},
    {"LlamaForCausalLM", "llama", llama_family},
    {"MistralForCausalLM", "mistral", llama_family},
    {"MixtralForCausalLM", "mixtral", moe_family},
    {"Phi3ForCausalLM", "phi3", phi3},
    {"PhiForCausalLM", "phi", phi},
    {"Qwen2ForCausalLM", "qwen2", llama_family},
    {"Qwen3ForCausalLM", "qwen3", llama_family},
    {"Qwen3MoeForCausalLM", "qwen3_moe", moe_family},
};

std::string read_file(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::file_status status = std::filesystem::status(path, failed);
  auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::file_unreadable, "cannot read the model's configuration " + path.string() + ": " + why)
        .key("model.config")
        .help("give the path of a Hugging Face config.json, from the current folder");
  };
  if (!std::filesystem::exists(status))
    throw refuse(failed && status.type() == std::filesystem::file_type::none ? failed.message() : "no such file");
  if (!std::filesystem::is_regular_file(status)) throw refuse("not a regular file");
  if (std::uintmax_t size = std::filesystem::file_size(path, failed); failed || size > kMaxConfigBytes) throw refuse("larger than 4 MiB");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw refuse(std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw refuse(std::strerror(errno));
  return text.str();
}

}  // namespace

std::vector<std::string> known_architectures() {
  std::vector<std::string> out;
  for (const Entry& entry : kFamilies) out.emplace_back(entry.architecture);
  std::sort(out.begin(), out.end());
  return out;
}

ModelOutline parse_outline(std::string_view json, const std::string& name, DType storage) {
  return make_outline(ConfigJson::parse(json, name), storage);
}

ModelOutline make_outline(const ConfigJson& config, DType storage) {
  std::vector<std::string> architectures = config.strings("architectures");
  std::string type = config.string("model_type", "");
  for (const Entry& entry : kFamilies)
    if (architectures.empty() ? type == entry.model_type : architectures[0] == entry.architecture) return entry.family(config, storage);
  std::vector<std::string> known = known_architectures();
  std::string found =
      architectures.empty() ? (type.empty() ? "no architecture" : "model_type \"" + type + "\"") : "\"" + architectures[0] + "\"";
  std::string all;
  for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
  Error error(ErrorCode::unknown_architecture, config.name() + " names " + found + "; the families built in are " + all);
  error.key("model.config");
  if (!architectures.empty())
    if (std::string near = nearest_name(architectures[0], known); !near.empty())
      error.help("did you mean \"architectures\": [\"" + near + "\"]?");
  throw error;
}

ConfigJson load_config(const std::filesystem::path& config_or_folder) {
  std::error_code failed;
  std::filesystem::path path =
      std::filesystem::is_directory(config_or_folder, failed) ? config_or_folder / "config.json" : config_or_folder;
  return ConfigJson::parse(read_file(path), path.string());
}

ModelOutline load_outline(const std::filesystem::path& config_or_folder, DType storage) {
  return make_outline(load_config(config_or_folder), storage);
}

}  // namespace meshwright::models
