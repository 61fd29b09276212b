// What libmeshwright_parquet.so gives UnpackedFile: the rows of a Parquet file as JSON lines. The
// library lies beside the SDK's and is loaded where such a file comes, since it needs Arrow's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "meshwright/error.h"
#include "sdk/base/unpack/unpacked_file.h"

namespace meshwright::base {

struct ParquetFile {
  int fd = -1;  // open as long as its rows are read
  const std::string& path;
  ErrorCode code;  // of errors
  const Columns& columns;
};

class ParquetRows {
 public:
  ParquetRows() = default;
  ParquetRows(const ParquetRows&) = delete;
  ParquetRows& operator=(const ParquetRows&) = delete;
  virtual ~ParquetRows() = default;
  // As UnpackedFile::read(), and taken().
  virtual size_t read(std::span<char> out) = 0;
  virtual int64_t taken() const = 0;
};

// The symbol kOpenParquet of the library; the caller owns what it returns. It throws
// Error(file.code).
using OpenParquet = ParquetRows* (*)(const ParquetFile& file);
inline constexpr const char* kOpenParquet = "meshwright_open_parquet";

}  // namespace meshwright::base
