// Jobs of the real program on the fake device or the CPU, and what their logs say.
#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace fake_device_jobs {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

// In 16 bits a device rounds the sum of the gradients of what reads together, the CPU each of them.
constexpr double kFloat = 1e-6, kHalf = 1e-4;

// A configuration of configs/ with other settings.
struct Row {
  std::string name, config;
  int ranks = 2;
  Strings sets;
  double tolerance = kFloat;
  size_t steps = 3;
  size_t resume_after = 0;  // steps of a first run, which another one continues
};

// A folder for the runs of a case.
struct Folder {
  fs::path path;
  Folder();
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

// What became of a job.
struct Ended {
  int code = -1;
  double seconds = 0;
  std::string said;
  std::vector<double> losses, norms;
  std::vector<boost::json::object> rows;      // of metrics.jsonl, of steps
  Strings logs;                               // the device's, one a process
  std::vector<boost::json::object> counters;  // of FAKE_DEVICE_COUNTERS, one a rank, in order
};

enum class On { device, host };
// `meshwright WORDS ...`. `variables` are NAME=VALUE of the environment; a job that hangs is killed
// with all its ranks.
Ended run_program(const fs::path& folder, const Strings& words, On on,
                  const Strings& variables = {});
// The same of another program, as so many ranks that no launcher keeps together.
Ended run_ranks(const fs::path& folder, const Strings& words, int ranks, On on,
                const Strings& variables = {});
Ended train(const Row& row, On on, const Strings& variables = {});

// Lines of a log that tell of a fault, of the program's or of the fake.
Strings wrong_lines(const std::string& log);
// Those of them that tell of a race.
long races(const Ended& ended);
// The number before a word of the summary, or -1.
long counted(const std::string& log, const std::string& word);
// Both have a value for each step, and the same.
void check_close(const char* what, const std::vector<double>& got, const std::vector<double>& want,
                 const Row& row);

}  // namespace fake_device_jobs
