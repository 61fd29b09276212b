#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace meshwright::base {

// All that a file holds; what cannot be read is left out. For small files, and for those of /proc,
// which have no size.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace meshwright::base
