#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace meshwright::base {

// All that a regular file holds (foreign_file.h), those of /proc, which have no size, among them.
// What cannot be read, or has more than `most` bytes, is left out.
std::string read_file(const std::filesystem::path& path, size_t most = size_t{256} << 20);

}  // namespace meshwright::base
