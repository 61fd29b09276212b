// Runs that are broken off and continued: what they must leave, beside a run that nobody touched.
#pragma once

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "program.h"

namespace faults {

struct Layout {
  std::string strategy = "fsdp2";
  bool background = false;  // checkpoint.async
  std::string mix;          // dataset.mix, a list of tables; empty: none
  int64_t ranks = 2, steps = 12, every = 3;
  std::string text() const;  // "fsdp2, asynchronous"
  // Of `meshwright train`.
  Words arguments(const Words& more = {}) const;
};

// Those of a run of this layout that nothing interrupts; made once in this process.
const Words& unbroken_rows(const Layout& layout);

std::filesystem::path checkpoint_folder(const Program& program);
std::filesystem::path temporary_of(const Program& program, int64_t step);
// The steps of all published checkpoints, each verified to the last byte; ascending.
std::vector<int64_t> verified_steps(const Program& program);
// Runs the same command again until it ends by itself; then every step is there once and equal to
// the unbroken run's, every checkpoint is whole, the last step has one, and nothing else is left.
void continue_and_compare(Program& program, const Layout& layout, const Words& more = {});

// What makes the NTH call of this kind fail so, of files under a path, on one rank or on all. The
// library writes to `log` which it was.
Environment failing(const std::filesystem::path& under, const std::string& call, int64_t nth,
                    const std::string& fault, std::optional<int64_t> rank = {},
                    const std::filesystem::path& log = {});

// MESHWRIGHT_FULL_RUN=FILE: the counts that a release is held to instead of a sample, with a log of
// them in FILE.
class Record {
 public:
  Record();
  bool full() const { return full_; }
  void say(const std::string& line);

 private:
  bool full_;
  std::ofstream file_;
};

}  // namespace faults
