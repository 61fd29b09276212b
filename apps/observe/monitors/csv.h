// metrics.jsonl as CSV (RFC 4180): a line a step, for spreadsheets and data frames.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/observe/monitors/numbers.h"

namespace meshwright::monitor {

// "step", "completed_steps", the fields of steps as they come, "validation_loss".
std::vector<std::string> csv_columns(std::string_view jsonl);

// Rows into lines. A validation comes in a row of its own and goes into the line of its step, which
// therefore is held until the next row.
class CsvLines {
 public:
  explicit CsvLines(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  std::string header() const;
  bool has_columns_for(const Row& row) const;
  // The line that is complete now, or nothing. Fields without a column are left out.
  std::string add(const Row& row);
  // The line that was held, or nothing.
  std::string rest();

 private:
  std::vector<std::string> columns_, held_;
  int64_t held_steps_ = -1;
};

// A whole file; lines that are no rows are left out.
std::string csv_of(std::string_view jsonl);

}  // namespace meshwright::monitor
