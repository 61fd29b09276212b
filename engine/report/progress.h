// How far long work has come.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/report/report.h"

namespace meshwright::report {

// "1 h 02 min", "3 min 20 s", "12 s".
std::string human_duration(double seconds);

// A part of a line that is drawn again and again. Where a terminal is too narrow for all parts,
// those with the largest `spare` go first.
struct LineField {
  std::string text;
  int spare = 0;
};
// The fields that `columns` columns have room for, two spaces apart. A field is there whole or not
// at all: half a number would be a wrong number.
std::string fit_line(std::vector<LineField> fields, int columns);

// One line with a bar, the speed and the time left of work that is measured in bytes; drawn at most
// ten times a second, and gone when the object is. Draws nothing unless `live`.
class ByteProgress {
 public:
  ByteProgress(Output& out, const Style& style, bool live, std::string doing, int64_t total);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;
  void add(int64_t bytes);

 private:
  Output& out_;
  Style style_;
  bool live_, drawn_ = false;
  std::string doing_;
  int64_t total_, done_ = 0;
  std::chrono::steady_clock::time_point begin_, said_;
};
// The bar itself, `cells` wide.
std::string progress_bar(const Style& style, double part, int cells);

}  // namespace meshwright::report
