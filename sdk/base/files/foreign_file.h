#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "meshwright/error.h"

namespace meshwright::base {

// All that a regular file holds (foreign_file.h), those of /proc, which have no size, among them.
// What cannot be read, or has more than `most` bytes, is left out.
std::string read_file(const std::filesystem::path& path, size_t most = size_t{256} << 20);

// The way in to files that somebody else may have made: nothing waits for the other end of a pipe,
// no device is opened, and no more is read than was asked for.

class ForeignFile {
 public:
  enum class Links : uint8_t { followed, refused };
  // Opens a regular file; anything else is a problem().
  explicit ForeignFile(const std::filesystem::path& path, Links links = Links::followed);
  ForeignFile(const ForeignFile&) = delete;
  ForeignFile& operator=(const ForeignFile&) = delete;
  ~ForeignFile();

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int64_t size() const { return size_; }  // when it was opened; of files in /proc 0
  // "": none. "is a folder", "is not a regular file", "cannot be opened: Permission denied", "has
  // more than 64 MiB".
  const std::string& problem() const { return problem_; }
  int reason() const { return reason_; }  // the errno of the problem; 0: it has none

  // All that it holds. More than `most` bytes, or a disk that fails, is a problem(): "" then.
  std::string read(size_t most);

 private:
  bool fail(int reason, const std::string& what);
  bool judge(uint32_t mode);
  int fd_ = -1, reason_ = 0;
  int64_t size_ = 0;
  std::string problem_;
};

// What is read of a file as a whole: small ones, and those that grow by a line a step.
inline constexpr size_t kSmallFile = size_t{64} << 20, kLargeFile = size_t{2} << 30;

// The same at once. Throws Error(`code`): the path and the problem.
std::string read_foreign(const std::filesystem::path& path, size_t most, ErrorCode code);

}  // namespace meshwright::base
