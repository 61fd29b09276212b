// Before anything is trained: do all ranks see one and the same run folder, and read the same data
// and the same weights?
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright::train {

// Collective. Rank 0 makes the folder and writes a small file into it, the others look for that
// file, and it is removed. Throws Error(run_folder_not_shared) on every rank, naming the ranks and
// hosts that do not see it, and rank 0's Error(output_unwritable).
void check_shared(World& world, const std::filesystem::path& folder);

// Files that one key names.
struct FileGroup {
  std::string key;   // "dataset.path"
  std::string what;  // "training data"
  std::vector<std::string> paths;
};

// What a data set says that it is (SampleSource::fingerprint()).
struct Fingerprint {
  std::string key;    // "dataset.plugin"
  std::string what;   // "training data"
  std::string value;  // hex digits
};
// Collective; the same keys on every rank. Throws Error(data_differs) on every rank, naming the odd
// ones, where not all have the same.
void check_same_fingerprints(World& world, const std::vector<Fingerprint>& fingerprints);

// Collective; `groups` have the same keys on every rank. Compares sizes and contents of all files
// and throws Error(data_differs) on every rank when they are not alike, naming file, ranks and
// hosts. A group of up to 64 MiB is read whole, a larger one at its files' ends and at 256 places
// between them, or whole too when `whole`. Ranks that read one and the same file (the same host,
// device and inode) leave the work to the first of them. Returns what there is to say of it: with
// `whole` how much was read.
std::string check_same_data(World& world, const std::vector<FileGroup>& groups, bool whole);

// Checksum of what check_same_data() compares of these files. Local. Throws Error(file_unreadable).
std::string digest_of(const FileGroup& group);

// The weights and JSON files of a Hugging Face folder, or the one file.
std::vector<std::string> weight_files(const std::string& pretrained);

}  // namespace meshwright::train
