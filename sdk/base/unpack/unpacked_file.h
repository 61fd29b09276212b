// A file read from its beginning to its end, unpacked on the way where gzip or Zstandard packed it,
// or where it is Parquet.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::base {

enum class FileKind : uint8_t { plain, gzip, zstd, parquet };
// What a file is by its first bytes: no text in UTF-8 begins like packed data. One may begin like
// Parquet, which has the same four bytes at its end.
constexpr FileKind kind_of(std::string_view begin) {
  if (begin.starts_with("\x1F\x8B")) return FileKind::gzip;
  if (begin.starts_with("\x28\xB5\x2F\xFD")) return FileKind::zstd;
  return begin.starts_with("PAR1") ? FileKind::parquet : FileKind::plain;
}
// The same by its last bytes too.
constexpr FileKind kind_of(std::string_view begin, std::string_view end) {
  const FileKind kind = kind_of(begin);
  return kind == FileKind::parquet && !end.ends_with("PAR1") ? FileKind::plain : kind;
}
// "gzip"; of a plain file "".
constexpr std::string_view name_of(FileKind kind) {
  switch (kind) {
    case FileKind::plain:
      break;
    case FileKind::gzip:
      return "gzip";
    case FileKind::zstd:
      return "zstd";
    case FileKind::parquet:
      return "Parquet";
  }
  return "";
}

// The name of what a file is unpacked to: without .gz, .zst and .zstd at its end.
std::string_view unpacked_name(std::string_view path);
inline bool is_packed_name(std::string_view path) { return unpacked_name(path) != path; }

inline bool is_parquet_name(std::string_view path) { return path.ends_with(".parquet"); }

// For what came out of a packed file and is no text: it is of that kind.
Error packed_within(const std::string& path, FileKind kind, ErrorCode code);

// Which columns of a Parquet file are read.
struct Columns {
  // A column, or a path into one, "data.question".
  struct Path {
    std::string path;
    bool optional = false;  // it may be absent
  };
  std::vector<Path> paths = {};  // none: all columns
  // For messages: the setting that names them, and what to do where one cannot be read.
  std::string key = {}, help = {};
};

// In memory lie one piece of the file and what the format itself looks back at, 128 MiB at most,
// however much comes out. Of Parquet it is up to 256 rows, fewer where they are long, and a page
// and the dictionary of each column, however large its writer made them. What comes out are JSON
// lines, an object for each row, so that row N, from 1 on, is line N. Numbers, strings and dates
// are its members, lists and objects what nested columns become, and what is null is left out. Of
// one thread at a time.
class UnpackedFile {
 public:
  // What it is, its first bytes say, of Parquet its last ones too. A name that ends in .gz, .zst or
  // .parquet wants what it promises. Throws Error(`code`) naming the file: it cannot be read, it
  // has such a name and is empty, it is Parquet and nothing here reads that, or it has no such
  // columns, or those of another type.
  UnpackedFile(const std::string& path, ErrorCode code, const Columns& columns = {});
  UnpackedFile(UnpackedFile&&) noexcept;
  UnpackedFile& operator=(UnpackedFile&&) noexcept;
  ~UnpackedFile();

  // Fills `out`; fewer bytes are the end of the file, which is good up to there only then. Several
  // members or frames, one behind the other, are one text. Throws Error(`code`) "FILE: what at byte
  // N" for packed data that is damaged or ends too early; N counts the bytes of the file itself.
  // Of Parquet it is "FILE: what" with the row group.
  size_t read(std::span<char> out);
  FileKind kind() const;
  bool packed() const { return kind() != FileKind::plain; }
  int64_t size() const;   // of the file itself, when it was opened
  int64_t taken() const;  // bytes of it that were read

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace meshwright::base
