// Hugging Face folders made of checkpoints, without any rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/source.h"
#include "engine/checkpoint/weights/export.h"

namespace meshwright::checkpoint {

// Of a checkpoint with adapters: they alone, as peft lays them out, or the whole model with them in
// its weights.
enum class ExportForm : uint8_t { adapter, merged };

struct ExportChoice {
  std::optional<DType> dtype =
      {};  // of all floating weights; absent: of each what the model's own folder has
  int64_t shard_bytes = 5'000'000'000;  // as weights::ExportOptions
  std::function<void(int64_t bytes)> progress =
      {};                                 // hears of bytes written, export_bytes() in all
  ExportForm form = ExportForm::adapter;  // without adapters there is one form
};

// Throws Error(output_unwritable) where an export to `target` would take away the model that the
// source's adapters lie beside, where it is now or where it was then.
void check_keeps_base(Source& source, const std::filesystem::path& target);

// Merges the shards of any layout, tensor by tensor in bounded memory, each byte checked before it
// is used. config.json stays as it is, but for the dtype it names when another one is chosen.
// `merged`: gets what a merge comes to. Throws what Source, adapters_of(),
// check_keeps_base() and weights::write_folder throw, the last two before anything is written.
weights::Exported export_folder(Source& source, const std::filesystem::path& target,
                                const ExportChoice& choice, MergeCount* merged = nullptr);
// Bytes that export_folder will write, but for the headers.
int64_t export_bytes(Source& source, const ExportChoice& choice);

// The text of a config.json with another dtype at its top ("torch_dtype" or "dtype"); as it is
// where it names none.
std::string with_dtype(std::string_view config, DType dtype);

// What is carried along of a checkpoint's source/, and a line about what is not, as of a folder
// (weights::carried_files()); "": all is. The list is somebody else's.
struct CarriedFiles {
  std::vector<const FileRecord*> files;  // of Meta::files
  std::string notice;
};
CarriedFiles carried_by(const Checkpoint& checkpoint);

}  // namespace meshwright::checkpoint
