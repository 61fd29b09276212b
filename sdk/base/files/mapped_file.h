// A regular file mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "meshwright/error.h"

namespace meshwright::base {

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

}  // namespace meshwright::base
