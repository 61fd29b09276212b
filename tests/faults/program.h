// `meshwright train` as a user runs it: real processes that can be killed, stopped and looked at
// afterwards.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/fixtures/free_port.h"

namespace faults {

// How a process ended and what it said.
struct Ended {
  int code = -1;  // 128 + n when a signal ended it
  std::string out, err;
  double seconds = 0;  // since start(), or since mark()
  bool says(const std::string& part) const { return err.find(part) != std::string::npos; }
};

using Environment = std::vector<std::pair<std::string, std::string>>;
using Words = std::vector<std::string>;

// It ended with this exit status and says all of these, and nothing of those.
void check_ended(const Ended& ended, int code, const Words& says = {}, const Words& never = {});

// "--nproc N", unless N is 0, and all settings after "--set".
Words job_words(int64_t ranks, const Words& sets = {}, const Words& more_sets = {});

// A folder of its own with job.toml in it: a tiny Llama on the tokens of tests/data/parity, more
// steps than anybody waits for.
class Program {
 public:
  Program();
  ~Program();  // kills what is left
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const std::filesystem::path& job() const { return job_; }
  std::filesystem::path run_folder() const { return job_.parent_path() / "runs" / "fault"; }
  // Copies of the committed model and tokens, to be damaged.
  std::filesystem::path copy_model() const;
  std::filesystem::path copy_tokens() const;

  // Trains another case's file, in its run folder.
  void share(const Program& other) { job_ = other.job_; }

  // The following starts happen in that folder.
  void in(std::filesystem::path folder) { directory_ = std::move(folder); }
  // What the following starts put before `meshwright train`: a launcher and its arguments.
  void launcher(Words words) { launcher_ = std::move(words); }
  // In place of train.
  void verb(std::string name) { verb_ = std::move(name); }
  // `meshwright train job.toml` with these arguments; its streams go to files, or where `out` says.
  void start(const Words& arguments, const Environment& environment = {},
             const std::string& out = "");
  pid_t pid() const { return pid_; }
  // The process of a local rank; waits for it.
  pid_t rank(int64_t number) const;
  // Waits until metrics.jsonl has so many rows.
  void wait_for_steps(int64_t count) const;
  void mark();  // time counts from here
  // Ends the case when the process does not end in time: a hang. Checks that nothing of it is left
  // and nothing is half-written.
  Ended wait(double limit = 60);
  // The same for one that was killed with all its ranks in the middle of its work: only that its
  // processes are gone.
  Ended reap(double limit = 60);
  Ended run(const Words& arguments, const Environment& environment = {}) {
    start(arguments, environment);
    return wait();
  }

 private:
  void check_processes() const;
  void check_files() const;
  std::filesystem::path folder_, job_, directory_;
  std::string marker_;
  Words launcher_;
  std::string verb_ = "train";
  pid_t pid_ = -1;
  std::string out_;
  std::chrono::steady_clock::time_point begin_;
};

// The environment of one of several processes that a launcher would start on this host.
Environment rank_environment(int64_t rank, int64_t world, int port);

// One row a step, or a validation: what training computed, without what it cost.
Words training_rows(const Program& program);

// All of a file; empty where it cannot be read.
std::string read_file(const std::filesystem::path& path);

}  // namespace faults
