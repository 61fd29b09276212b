// How far long work has come.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "sdk/base/terminal/report.h"

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
// How far one rank of several has come with work that is counted, and the time left, on standard
// error: what was asked for is on standard output. One line that is drawn again on a terminal
// (`live`), and gone when the object is; elsewhere a line now and then. Only who leads says it.
class CountProgress {
 public:
  CountProgress(const Style& style, bool live, bool leads, int64_t count);
  ~CountProgress();
  CountProgress(const CountProgress&) = delete;
  CountProgress& operator=(const CountProgress&) = delete;
  // From 0 again, under this name.
  void begin(std::string name);
  void step();

 private:
  using Clock = std::chrono::steady_clock;
  std::string bar(double part, const std::string& text) const;
  void erase();
  Output out_{stderr, "standard error", Output::Loss::ignored};
  Style style_;
  bool live_, leads_, drawn_ = false;
  int64_t count_, done_ = 0;
  std::string name_;
  Clock::time_point begun_ = Clock::now(), said_ = begun_;
};
// The bar itself, `cells` wide.
std::string progress_bar(const Style& style, double part, int cells);

}  // namespace meshwright::report
