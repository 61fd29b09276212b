// Files of rows, mapped one behind the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/base/files/mapped_file.h"

namespace meshwright::jsonl {

// A file that is read from its beginning to its end; not mapped: it is empty.
struct DataFile {
  std::string path;
  std::optional<base::MappedFile> mapped;
  uint64_t before = 0;  // bytes of the files in front of it

  std::string_view text() const;
};

// Throws Error(bad_dataset) for one that cannot be read.
std::vector<DataFile> open_files(const std::vector<std::string>& paths);

}  // namespace meshwright::jsonl
