// A folder of a test's own, and the small tokenizer of the configs.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

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

}  // namespace jsonl_test
