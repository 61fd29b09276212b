// What every checkpoint of a run carries beside its tensors: config.json, the tokenizer, settings.
// Their bytes are read once, when the run starts, and all of its saves write these, whatever
// becomes of the files.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/meta.h"
#include "meshwright/dtype.h"

namespace meshwright::train {

struct KeptFile {
  checkpoint::FileRecord record;  // its name in a checkpoint, and the checksums of what was read
  std::string bytes;
};

class KeptFiles {
 public:
  // In place of one of that name.
  void add(std::string name, std::string bytes);
  // Throws Error(file_unreadable).
  void read(std::string name, const std::filesystem::path& file);
  void remove(const std::function<bool(std::string_view name)>& which);
  const std::vector<KeptFile>& all() const { return files_; }

 private:
  std::vector<KeptFile> files_;
};

// Writes the file into `folder`, where it may lie in a folder of its own.
checkpoint::FileRecord write_kept(const KeptFile& file, const std::filesystem::path& folder);

// The model's share of it: `config_text` as config.json, the other files of the folder that the
// weights came from, or the tokenizer that lies beside `config`; of a run that goes on those of its
// checkpoint. `bytes`: the run trains on the bytes of texts, which no tokenizer fits.
struct ModelFiles {
  KeptFiles files;
  std::vector<std::pair<std::string, DType>> export_dtypes;  // of weights, by name
  std::vector<std::string> notices;                          // of files that stay behind
};
// Throws what reads them: Error(file_unreadable | bad_checkpoint | bad_safetensors).
ModelFiles read_model_files(checkpoint::Checkpoint* from, const std::filesystem::path& config,
                            const std::string& config_text, const std::string& pretrained,
                            bool bytes);

}  // namespace meshwright::train
