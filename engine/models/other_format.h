// Weights that people have in formats that are not read here, and the way from them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace meshwright::base {

// What to do with a run or a checkpoint of our own, which is no Hugging Face folder.
inline std::optional<std::string> own_folder_help(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::exists(path / "meta.json", failed) &&
      !(std::filesystem::is_directory(path / "checkpoints", failed) &&
        std::filesystem::exists(path / "config.resolved.toml", failed)))
    return std::nullopt;
  return "it is a run or a checkpoint: meshwright checkpoint export " + path.string() +
         " --out models/new, and name that folder";
}

// What to do with a file of llama.cpp or of Python's pickles, or with a folder that holds one;
// nothing for all else.
inline std::optional<std::string> other_format_help(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  auto of_file = [](const fs::path& file) -> std::optional<std::string> {
    const std::string end = file.extension().string(), name = file.filename().string();
    const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
    if (end == ".gguf")
      return "GGUF is llama.cpp's format: take the folder that the model was published as, with "
             "config.json and model.safetensors, or let transformers write one: "
             "AutoModelForCausalLM.from_pretrained(\"" +
             folder + "\", gguf_file=\"" + name + "\").save_pretrained(\"models/new\")";
    if (end == ".bin" || end == ".pt" || end == ".pth")
      return name +
             " is a pickle of PyTorch, which is a program and not read here; let transformers "
             "write safetensors: AutoModelForCausalLM.from_pretrained(\"" +
             folder + "\").save_pretrained(\"models/new\")";
    return std::nullopt;
  };
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return of_file(path);
  std::optional<std::string> out;
  for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed)) {
    std::optional<std::string> help = of_file(at->path());
    // The same one on every machine; training_args.bin is no model.
    if (help && at->path().filename() != "training_args.bin" && (!out || *help < *out))
      out = std::move(help);
  }
  return out;
}

}  // namespace meshwright::base
