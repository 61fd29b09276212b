// The model that a run with adapters started from: its checkpoints leave the weights that do not
// train where they are, and say where that was and what they were.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/meta.h"
#include "engine/checkpoint/weights/safetensors.h"

namespace meshwright::checkpoint {

// 16 hexadecimal digits of the tensors' names, dtypes, shapes and contents, however they are
// divided into files. Of more than 64 MiB only three places of 4 KiB a tensor are read, so a folder
// of 16 GB (300 tensors) costs some 4 MB of reading; training changes every one of them somewhere
// there.
std::string fingerprint_of(const weights::WeightFolder& folder);

// Who says where that model is now: what a user can set when it is not there.
enum class BaseNamedBy : uint8_t {
  record,      // the checkpoint itself: where it was
  pretrained,  // model.pretrained of a run that goes on
  flag         // --base of `checkpoint export`
};

class BaseModel {
 public:
  // `folder` takes the place of the recorded path. Throws Error(file_unreadable) when there is no
  // such folder, Error(checkpoint_mismatch) when other weights lie there, Error(bad_safetensors).
  // `checkpoint`: for messages.
  BaseModel(const BaseRecord& record, const std::filesystem::path& folder, BaseNamedBy named_by,
            const std::filesystem::path& checkpoint);
  // Checkpoint::read() of a tensor with `base`.
  void read(const TensorRecord& tensor, const std::string& architecture, const Region& region,
            DType target, void* out) const;

 private:
  std::filesystem::path checkpoint_, folder_;
  std::unique_ptr<weights::WeightFolder> weights_;
};

// A checkpoint that is there: opened, checked and read part by part through memory maps.

// meta.json of a folder alone. Throws Error(no_checkpoint) when there is none,
// Error(bad_checkpoint).
Meta read_meta(const std::filesystem::path& folder);

// Not thread-safe.
class Checkpoint {
 public:
  // Reads and checks meta.json, and that every file it lists is there in its size. Throws
  // Error(no_checkpoint) when the folder is none, Error(bad_checkpoint) naming file and byte.
  explicit Checkpoint(std::filesystem::path folder);
  ~Checkpoint();
  const Meta& meta() const { return meta_; }
  const std::filesystem::path& folder() const { return folder_; }
  // Where the model now is that Meta::base names, in place of the path there, and who says so.
  void base_is_in(std::filesystem::path folder, BaseNamedBy named_by) {
    base_folder_ = std::move(folder);
    base_named_by_ = named_by;
  }
  const std::filesystem::path& base_folder() const { return base_folder_; }  // empty: that path
  // Opens it, if there is one. Throws what BaseModel() throws; read() opens it when it has to.
  void open_base();
  // Unmaps every file, the base model's too, which what is read later maps again: a folder that is
  // removed meanwhile gives its room on the disk back.
  void release();
  int64_t bytes() const;          // of all files
  int64_t bytes_checked() const;  // that were read and compared with their checksums so far

  // Copies a part of a tensor to `out`, which has room for region.count() elements of `target`, in
  // the region's order. Floating dtypes convert among each other. Only the blocks it lies in are
  // read, each checked against its checksum before anything of it is used. Throws
  // Error(bad_checkpoint), Error(weights_mismatch) when dtypes do not convert, and what open_base()
  // throws.
  void read(const TensorRecord& tensor, const Region& region, DType target, void* out);
  // The whole of a small file, checked. `name` as in meta().files.
  std::string read_file(const std::string& name);
  // A generator's state.
  std::string read_generator(const GeneratorRecord& generator);

  // Whether the headers of the safetensors files say what meta.json says, nothing less and nothing
  // more. At most one error a file.
  std::vector<Error> check_headers();

 private:
  struct Opened;
  Opened& open(size_t file);
  const weights::TensorEntry& entry(const Piece& piece, const TensorRecord* tensor);
  void check_blocks(Opened& opened, int64_t from, int64_t to);
  std::filesystem::path folder_;
  Meta meta_;
  std::vector<std::unique_ptr<Opened>> opened_;
  std::filesystem::path base_folder_;  // empty: where meta.json says
  BaseNamedBy base_named_by_ = BaseNamedBy::record;
  std::optional<BaseModel> base_;
};

}  // namespace meshwright::checkpoint
