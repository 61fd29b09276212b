// What every checkpoint of a run carries beside its tensors: config.json, the tokenizer, settings.
// Their bytes are read once, when the run starts, and all of its saves write these, whatever
// becomes of the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/meta.h"
#include "engine/train/step/local_state.h"
#include "meshwright/dtype.h"
#include "meshwright/error.h"
#include "meshwright/trainer.h"

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

// What several ranks hold of one tensor must be the same, since a checkpoint keeps it once. A
// digest of each tensor that other ranks have too, in the order of Shares::replicas(): a list for
// every group of ranks, empty for groups without this rank. A tensor that no other rank has is not
// read, so that sharded models pay nothing. Local.
using ReplicaDigests = std::vector<std::vector<uint64_t>>;
ReplicaDigests replica_digests(const std::vector<Replicas>& replicas,
                               const std::vector<LocalTensor>& tensors, int64_t rank);
// A number for each of the groups that this rank is in; all tensors of a group as one.
std::vector<uint64_t> summary_of(const ReplicaDigests& digests);
// Collective. `summaries`: of all ranks. Error(replicas_differ), the same on every rank, with
// layout, tensor, the ranks that are unlike the majority (at a tie unlike the first), and how far
// apart the values are; nullopt: all are alike, which takes no further message.
std::optional<Error> find_differing(World& world, const std::vector<Replicas>& replicas,
                                    const std::vector<LocalTensor>& tensors,
                                    const ReplicaDigests& mine,
                                    const std::vector<std::vector<uint64_t>>& summaries,
                                    const std::string& strategy);

// The folders for Hugging Face that a run makes of its checkpoints: what checkpoint.export and
// lora.export say, in the run's folder. Of the rank that leads.
class Exports {
 public:
  Exports(const Job& job, const std::filesystem::path& run);
  // Makes them of this checkpoint, in place of those before. Throws what checkpoint::Source and
  // checkpoint::export_folder() throw.
  void write(const std::filesystem::path& checkpoint);
  // Lines on what was written last: where it is, and what adapters alone lack of the model.
  const std::vector<std::string>& told() const { return told_; }

 private:
  std::filesystem::path adapter_folder_;
  std::vector<std::pair<std::filesystem::path, checkpoint::ExportForm>> wanted_;
  std::vector<std::string> told_;
};

}  // namespace meshwright::train
