// Every byte of a checkpoint against its checksum, and every tensor against meta.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::checkpoint {

struct Verified {
  std::filesystem::path path;
  bool checksums = true;  // false: a Hugging Face folder, which has none; its structure was checked
  int64_t files = 0, bytes = 0, tensors = 0;
  std::vector<Error> damage;             // all of it, by file; empty: none
  std::vector<std::string> not_covered;  // files of the folder that meta.json does not list
  // Of a checkpoint with adapters alone: the folder of their model, and what is wrong with that;
  // "": nothing. No damage of the checkpoint.
  std::string base, base_problem;
};

// Reads the files one after the other, not through memory maps: a disk that fails is an error, not
// a signal. `progress` hears of bytes read and may throw. Damage to the point that nothing can be
// read is in `damage` too.
Verified verify_checkpoint(const std::filesystem::path& folder,
                           const std::function<void(int64_t bytes)>& progress);
// Headers, index, and that every tensor is in one file once.
Verified verify_weights(const std::filesystem::path& path);
// Bytes that verify_checkpoint will read; 0 when meta.json cannot be read.
int64_t verify_bytes(const std::filesystem::path& folder);

}  // namespace meshwright::checkpoint
