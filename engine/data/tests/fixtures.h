// What the tests of this folder share: a folder that goes away, token files and their indices, and
// how opening fails.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/data/dataset.h"

namespace meshwright::data {

struct Folder {
  std::filesystem::path path;
  explicit Folder(const std::filesystem::path& place = std::filesystem::temp_directory_path())
      : path(place / ("meshwright_data_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path / name, std::ios::binary) << bytes;
    return (path / name).string();
  }
};

template <class T>
std::string pack(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::vector<int64_t> sample(const Dataset& data, int64_t index) {
  std::vector<int64_t> out(static_cast<size_t>(data.seq_len()) + 1);
  data.read(index, out.data());
  return out;
}

// What `body` throws; an error that says "nothing" where it throws none.
template <class Body>
Error thrown(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, "nothing"};
}

inline std::string failure(const DatasetConfig& config, int64_t read = -1) {
  try {
    auto data = open_dataset(config);
    if (read >= 0) sample(*data, read);
  } catch (const Error& error) {
    CHECK(exit_status(error.code()) == 7);
    return code_string(error.code()) + " " + error.message();
  }
  return "";
}

inline std::string llm_header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> head(256);
  head[0] = magic, head[1] = version, head[2] = count;
  return pack(head);
}

inline std::string index_file(const std::vector<int32_t>& lengths, uint8_t code, int64_t width) {
  std::string out("MMIDIDX\0\0", 9);
  out += pack<uint64_t>({1}) + std::string(1, static_cast<char>(code)) +
         pack<uint64_t>({lengths.size(), lengths.size() + 1}) + pack(lengths);
  int64_t at = 0;
  for (int32_t n : lengths) {
    out += pack<int64_t>({at});
    at += n * width;
  }
  for (size_t i = 0; i <= lengths.size(); ++i) out += pack<int64_t>({static_cast<int64_t>(i)});
  return out;
}

}  // namespace meshwright::data
