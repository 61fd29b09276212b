// One place that hears of a run while it trains. Everything here may throw: Monitors tells it, and
// training goes on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "apps/observe/monitors/row.h"

namespace meshwright::monitor {

class Sink {
 public:
  virtual ~Sink() = default;
  // Where it writes: a path, an address.
  virtual std::string place() const = 0;
  virtual std::string key() const = 0;  // "report.csv"
  // Before any row; again after a failure of it.
  virtual void open() = 0;
  // `line`: the row as it is in metrics.jsonl.
  virtual void row(const Row& row, std::string_view line) = 0;
  // What was held back is written: nothing of the last step is still to come.
  virtual void flush() {}
  // Nothing more comes. `finished`: all steps of the run are done.
  virtual void end(bool finished) = 0;
  // After a failure of open().
  virtual bool may_try_again() const { return true; }
  // Rows that came while it could not write are not made up for.
  virtual bool misses_rows() const { return false; }
};

}  // namespace meshwright::monitor
