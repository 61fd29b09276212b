// A file read from its beginning to its end, unpacked on the way where gzip or Zstandard packed it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "meshwright/error.h"

namespace meshwright::base {

// The name of what a file is unpacked to: without .gz, .zst and .zstd at its end.
std::string_view unpacked_name(std::string_view path);
inline bool is_packed_name(std::string_view path) { return unpacked_name(path) != path; }

// In memory lie one piece of the file and what the format itself looks back at, 128 MiB at most,
// however much comes out. Of one thread at a time.
class UnpackedFile {
 public:
  // What it is, its first bytes say: no text in UTF-8 begins like packed data. A name that ends in
  // .gz or .zst wants what it promises. Throws Error(`code`) naming the file: it cannot be read, or
  // it has such a name and is empty.
  UnpackedFile(const std::string& path, ErrorCode code);
  UnpackedFile(UnpackedFile&&) noexcept;
  UnpackedFile& operator=(UnpackedFile&&) noexcept;
  ~UnpackedFile();

  // Fills `out`; fewer bytes are the end of the file, which is good up to there only then. Several
  // members or frames, one behind the other, are one text. Throws Error(`code`) "FILE: what at byte
  // N" for packed data that is damaged or ends too early; N counts the bytes of the file itself.
  size_t read(std::span<char> out);
  bool packed() const;
  int64_t size() const;   // of the file itself, when it was opened
  int64_t taken() const;  // bytes of it that were read

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace meshwright::base
