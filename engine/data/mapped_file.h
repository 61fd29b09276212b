// A regular file mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "meshwright/error.h"

namespace meshwright::data {

// The bytes stay valid while the object lives and the file keeps its size; a file that shrinks under a run ends it, as any other loss of
// its data would. Throws Error(`code`) naming file and reason: absent, a folder, a pipe, empty, not readable.
class MappedFile {
 public:
  MappedFile(const std::string& path, ErrorCode code);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();
  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int64_t size() const { return static_cast<int64_t>(size_); }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace meshwright::data
