// A checkpoint that is there: opened, checked and read part by part through memory maps.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/base_model.h"
#include "engine/checkpoint/meta.h"
#include "engine/checkpoint/weights/safetensors.h"

namespace meshwright::checkpoint {

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
