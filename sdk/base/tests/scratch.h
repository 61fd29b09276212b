// What tests of all folders need: a folder of their own, and errors as values.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::scratch {

// Empty at first, and gone with this object.
struct Folder {
  std::filesystem::path path;
  Folder() {
    const auto all = std::filesystem::canonical(std::filesystem::temp_directory_path());
    std::string name = (all / "meshwright_test.XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path); }

  // Writes a file, and makes the folders on the way to it.
  std::filesystem::path put(const std::filesystem::path& name, std::string_view bytes) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
    return path / name;
  }
  std::string read(const std::filesystem::path& name) const {
    std::ifstream in(path / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

// What a folder holds, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

// The error that `body` throws; one without words: it throws none.
template <class Body>
Error caught(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, ""};
}

// Its message, of an error with this code; "": it throws none.
template <class Body>
std::string message_of(Body&& body, ErrorCode code) {
  const Error error = caught(body);
  if (!error.message().empty()) CHECK(error.code() == code);
  return error.message();
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace meshwright::scratch
