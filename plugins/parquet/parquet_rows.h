// The rows of an Apache Parquet file, as JSON objects.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshwright::parquet_rows {

// One file, read from its beginning to its end, a batch of rows at a time. Used by one thread.
class ParquetRows {
 public:
  // `columns`: those at the top that are read; empty: all. Throws Error(bad_dataset) with the file
  // for what is no Parquet file, is damaged, or lacks a column.
  ParquetRows(const std::string& path, const std::vector<std::string>& columns);
  ~ParquetRows();
  ParquetRows(const ParquetRows&) = delete;
  ParquetRows& operator=(const ParquetRows&) = delete;

  int64_t rows() const;
  // The next rows as lines of JSON, each {"column": value, ...} with a line feed behind it; nothing
  // behind the last. Lists, structs and maps are arrays and objects, dates and decimals the strings
  // that Arrow gives them. Throws Error(bad_dataset) with the file and the row where the file is
  // damaged or a column has a type that JSON has nothing for.
  std::optional<std::string> next();

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

}  // namespace meshwright::parquet_rows
