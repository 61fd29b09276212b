// What the engine asks of the data set, with the small tokenizer and without a cache; a folder of a
// test's own.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "meshwright/data/dataset_kind.h"
#include "meshwright/error.h"
#include "plugins/jsonl/options.h"

namespace jsonl_test {

namespace fs = std::filesystem;

// 256 bytes, <|endoftext|> 256, <|im_start|> 257, <|im_end|> 258; a template like ChatML.
inline const char* const kTokenizer = MESHWRIGHT_SOURCE_DIR "/configs/models/chat-tiny";

inline void write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "jsonl_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder: " + name);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string string() const { return path_.string(); }

 private:
  fs::path path_;
};

// What `body` throws; an error that says "nothing" where it throws none.
template <class Body>
meshwright::Error thrown(const Body& body) {
  try {
    body();
  } catch (const meshwright::Error& error) {
    return error;
  }
  return {meshwright::ErrorCode::internal, "nothing"};
}

using meshwright::DatasetRequest;
using meshwright::OptionValue;
using meshwright::jsonl::kOptions;

struct Given {
  DatasetRequest request;
  explicit Given(const std::string& path, const std::string& cache = "none") {
    request.options =
        meshwright::Options(meshwright::make_schema("dataset.jsonl", "jsonl", kOptions));
    request.path = path;
    request.seq_len = 128;
    request.vocab_size = 320;
    request.seed = 1;
    request.options.set("cache", cache);
    request.options.set("tokenizer", std::string(jsonl_test::kTokenizer));
  }
  Given& set(const char* name, const OptionValue& value) {
    request.options.set(name, value);
    return *this;
  }
};

}  // namespace jsonl_test
