// What a file holds, for test programs that have no library of the engine's.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

// Empty: it cannot be read.
inline std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
