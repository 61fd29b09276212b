// What `checkpoint ls` and `checkpoint verify` find behind a path.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/meta.h"

namespace meshwright::checkpoint {

struct Listed {
  Found found;
  std::optional<Meta> meta;  // of those that are complete
  int64_t bytes = 0;         // of all files of those
  bool latest = false, best = false;
};

// The checkpoints of one run, by step.
struct Group {
  std::filesystem::path folder;  // that holds them
  std::vector<Listed> checkpoints;
};

// `path`: a checkpoint, a folder that holds checkpoints, a run's folder, or a folder of runs.
// Throws Error(no_checkpoint) when nothing is there.
std::vector<Group> list_checkpoints(const std::filesystem::path& path);

// Elements of all weights.
int64_t parameters_of(const Meta& meta);

}  // namespace meshwright::checkpoint
