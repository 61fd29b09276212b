#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

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

// A regular file mapped read-only.

// The bytes stay valid while the object lives and the file keeps its size: touching a page behind
// the end of a file that shrank is a SIGBUS. A reader of a long-lived mapping calls check_size()
// before each read, which leaves only the moment in between.
class MappedFile {
 public:
  // Throws Error(`code`) naming file and reason: absent, a folder, a pipe, empty, not readable, a
  // NUL in the name.
  MappedFile(const std::string& path, ErrorCode code);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();
  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const {
    return {data_, data_ == nullptr ? 0 : size_};
  }  // empty after unmap()
  int64_t size() const { return static_cast<int64_t>(size_); }  // as it was when opened

  // Throws Error(`code` of the constructor) when the file has fewer bytes than were mapped. A file
  // that was removed or replaced keeps its contents here. One system call.
  void check_size() const;
  // Gives the addresses back and keeps path and size; a process may have only so many mappings.
  void unmap();

 private:
  std::string path_;
  ErrorCode code_ = ErrorCode::internal;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
};

// Relative paths of a configuration start at the current folder, wherever the configuration itself
// lies.

// Advice for `path`, the value of `key`, which leads nowhere. Names the place that was tried and
// the current folder. `toml` is the file in which the value was written (empty: somewhere else):
// when the path would have led somewhere from that file's folder, that is said first, with a
// setting that works from here. Empty for an absolute path. `path` may be a pattern such as
// data/*.txt.
std::vector<std::string> relative_path_help(const std::string& key, const std::string& path,
                                            const std::string& toml);

// The files that a path of a configuration names.

// One file, a folder with all regular files below it, or a pattern; sorted by name, and but for one
// that is named itself none of them empty. Throws Error(bad_dataset) with `key` when nothing is
// found, with the help of relative_path_help() (`toml` as there), and when a folder on the way
// cannot be read.
std::vector<std::string> list_files(const std::string& path, const std::string& key,
                                    const std::string& toml);

}  // namespace meshwright::base
