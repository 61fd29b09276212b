// The safetensors files that one rank writes of a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint/meta.h"
#include "engine/checkpoint/weights/safetensors_writer.h"
#include "engine/train/run/host_reads.h"

namespace meshwright::train {

// A tensor of a file. The values are contiguous and on any device.
struct FileEntry {
  weights::TensorSpec spec;
  at::Tensor values;
};

struct RankFile {
  const char* kind;  // "model", "optimizer"
  std::vector<FileEntry> entries;
};

// "model-00001-of-00002.safetensors"
std::string rank_file_name(const char* kind, int64_t rank, int64_t world);

// Writes the file into `folder` as `name`, with the checksums of its blocks. `values` reads those
// of its entries next.
checkpoint::FileRecord write_rank_file(const RankFile& file, HostReads& values,
                                       const std::filesystem::path& folder,
                                       const std::string& name);
}  // namespace meshwright::train
