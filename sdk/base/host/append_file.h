// A file that grows by whole pieces: one that does not fit leaves no beginning of itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace meshwright::base {

class AppendFile {
 public:
  enum class Old : uint8_t { kept, emptied, refused };
  // `old`: what becomes of what stands there. Throws Error(output_unwritable).
  AppendFile(std::filesystem::path path, Old old);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // 0, or the errno of why nothing of it is there. Nothing waits for the disk.
  int append(std::string_view text) const noexcept;
  // 0, or an errno: what was appended is on the disk. A pipe or a terminal has nothing to sync.
  int sync() const noexcept;
  // No name leads to it any more: what is appended is lost with the last reader.
  bool removed() const noexcept;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace meshwright::base
