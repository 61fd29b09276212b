// The model that a run with adapters started from: its checkpoints leave the weights that do not
// train where they are, and say where that was and what they were.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

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

}  // namespace meshwright::checkpoint
