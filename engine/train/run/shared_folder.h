// Before anything is trained: do all ranks see one and the same run folder?
#pragma once

#include <filesystem>
#include <string>

#include "meshwright/parallel/group.h"

namespace meshwright::train {

// Collective. Rank 0 makes the folder and writes a small file into it, the others look for that
// file, and it is removed. Throws Error(run_folder_not_shared) on every rank, naming the ranks and
// hosts that do not see it, and rank 0's Error(output_unwritable).
void check_shared(World& world, const std::filesystem::path& folder);

// Where a path leads in this process, for messages that other ranks read.
std::string full_path(const std::filesystem::path& path);

}  // namespace meshwright::train
