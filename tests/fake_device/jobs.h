// Jobs of the real program on the fake device or the CPU, and what their logs say.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/fixtures/folder.h"

namespace fake_device_jobs {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

// In 16 bits a device rounds the sum of the gradients of what reads together, the CPU each of them.
constexpr double kFloat = 1e-6, kHalf = 1e-4;
// Two bfloat16 that differ by their last bit, 2^-8, become the same e5m2 in 63 of 64 cases and in
// the other one differ by 2^-2: in the root mean square eight times as much.
constexpr double kFloat8 = 8 * kHalf;

// A configuration of configs/ with other settings.
struct Row {
  std::string name, config;
  int ranks = 2;
  Strings sets;
  double tolerance = kFloat;
  size_t steps = 3;
  size_t resume_after = 0;              // steps of a first run, which another one continues
  Strings first_sets = {};              // of that first run alone
  bool sample = false, within = false;  // ctest runs it; others that it runs do the same and more
};
extern const std::vector<Row> kJobs;  // job_rows.cpp
// That of two ranks.
const Row& job_called(const std::string& name);

using Folder = TemporaryFolder;  // for the runs of a case

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
// The same, run once for all cases of this process, whatever they call the job.
const Ended& trained(const Row& row, On on, const Strings& variables = {});

// Lines of a log that tell of a fault (wrong_lines.h).
Strings wrong_lines(const std::string& log);
// Those of them that tell of a race.
long races(const Ended& ended);
// Not a line of all logs of a job tells of a fault.
void check_logs(const Ended& ended);
// The number before a word of the summary, or -1.
long counted(const std::string& log, const std::string& word);
// Both have a value for each step, and the same.
void check_close(const char* what, const std::vector<double>& got, const std::vector<double>& want,
                 const Row& row);

// As long as a job has to be for step_costs(): four steps lie between its first and its last one.
constexpr size_t kWatchedSteps = 6;
// How many steps of it are compared with the CPU's: in 16 bits what is rounded otherwise adds up.
size_t compared_steps(const Row& row);
// Both have losses and norms for each step, and the same in those.
void check_like(const Ended& device, const Ended& host, const Row& row);

// What the steps between the first and the last one cost, which begin and end the job: of all ranks
// and steps the most. Bytes are those over the first of these steps.
struct StepCosts {
  int64_t waits = 0;  // of a host in a step
  int64_t left = 0;   // where least is allocated: what steps have left behind
  int64_t grown = 0;  // where most is
  int64_t peak = 0;   // the most of the first of these steps
};
StepCosts step_costs(const Ended& ended, int ranks, size_t steps);
// How often a host may wait in a step of a job (job_rows.cpp has the table of all jobs).
int64_t most_waits(const std::string& name, int ranks);
// The job waits no more often, and no step of it leaves anything behind.
StepCosts check_steps(const Ended& ended, const Row& row);

}  // namespace fake_device_jobs
