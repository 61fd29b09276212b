// Writes folders as Hugging Face lays them out: config.json, model.safetensors or its shards and
// their index, and the files beside.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/weights/safetensors.h"

namespace meshwright::weights {

struct ExportTensor {
  TensorSpec spec;
  // Hands all bytes of the tensor in spec.dtype to the sink, in order, in pieces of any size.
  // Called once, from the exporting thread.
  std::function<void(const ByteSink& sink)> stream;
};

struct ExportFile {
  std::string name;  // in the folder, with '/' for sub-folders
  std::function<void(const ByteSink& sink)> stream;
};

struct ExportOptions {
  int64_t shard_bytes =
      5'000'000'000;  // of tensors in one file; a larger tensor gets a file of its own
  std::function<void(int64_t bytes)> progress =
      {};                      // hears of bytes written; may throw, which ends the export
  std::string stem = "model";  // of the names of the files with tensors
};

struct Exported {
  std::filesystem::path folder;    // absolute
  std::vector<std::string> files;  // as written
  int64_t bytes = 0;               // of all files
};

// Writes everything into a temporary folder beside the target, syncs it and puts it in place in one
// go; of the target either the old or the new contents are there, never a mix. Holds no tensor.
// Files equal those that transformers' save_pretrained makes of the same tensors in the same order.
// A target that is there must be empty or an earlier export (which bears a file .meshwright-export
// with the names of its files) to which nothing was added: anything else is never removed. Throws
// Error(output_unwritable); what a stream or progress throws passes through.
Exported write_folder(const std::filesystem::path& target, std::vector<ExportTensor> tensors,
                      std::vector<ExportFile> files, const ExportOptions& options = {});
// Throws what write_folder would throw for a target that it may not replace, before any work is
// done.
void check_target(const std::filesystem::path& target);
// Takes an earlier export away, whole: half of one never bears its name. Nothing where none is.
// Throws as check_target.
void remove_folder(const std::filesystem::path& target);
// Whether an export to `target` would take away `kept`, a folder of weights or a file: it is that
// folder by whatever name, lies in it, or has links that lead into it. False where `kept` is not
// there.
bool would_replace(const std::filesystem::path& target, const std::filesystem::path& kept);

// Contents of a file that is there. Throws Error(file_unreadable) when it is read.
ExportFile copy_of(std::string name, std::filesystem::path path);
ExportFile text_of(std::string name, std::string contents);
// A tensor of a file that stays open, converted on the way when `dtype` is another floating type.
ExportTensor tensor_of(const TensorEntry& entry, DType dtype);

}  // namespace meshwright::weights
