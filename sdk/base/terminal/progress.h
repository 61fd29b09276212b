// How far long work has come.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
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

// One line with a bar and the time left of work that is measured in bytes, whose speed it shows, or
// counted. On a terminal (`live`) it is drawn at most ten times a second, and gone when the object
// is; elsewhere counted work has a line now and then, and bytes none.
class WorkProgress {
 public:
  enum class Unit : uint8_t { bytes, steps };
  WorkProgress(Output& out, const Style& style, bool live, Unit unit, std::string name,
               int64_t total);
  ~WorkProgress() { erase(); }
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;
  // From 0 again, under this name.
  void begin(std::string name);
  void add(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  void erase();
  Output& out_;
  Style style_;
  bool live_, drawn_ = false;
  Unit unit_;
  std::string name_;
  int64_t total_, done_ = 0;
  Clock::time_point begun_ = Clock::now(), said_ = begun_;
};
class ByteProgress : public WorkProgress {
 public:
  ByteProgress(Output& out, const Style& style, bool live, std::string doing, int64_t total)
      : WorkProgress(out, style, live, Unit::bytes, std::move(doing), total) {}
};
// Of one rank of several, on standard error: what was asked for is on standard output. Only who
// leads says it.
class CountProgress {
 public:
  CountProgress(const Style& style, bool live, bool leads, int64_t count)
      : leads_(leads), work_(out_, style, live, WorkProgress::Unit::steps, "", count) {}
  void begin(std::string name) { work_.begin(std::move(name)); }
  void step() {
    if (leads_) work_.add(1);
  }

 private:
  Output out_{stderr, "standard error", Output::Loss::ignored};
  bool leads_;
  WorkProgress work_;
};
// The bar itself, `cells` wide.
std::string progress_bar(const Style& style, double part, int cells);

}  // namespace meshwright::report
