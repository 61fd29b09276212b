// Starts local ranks, forwards what they print, and ends all of them when one fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace meshwright::launch {

struct LocalJob {
  std::vector<std::string> argv;  // the program and its arguments, the same for every rank
  int64_t ranks = 1;
  std::vector<std::pair<std::string, std::string>> environment;  // beside RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR ...
  std::filesystem::path log_folder;                              // rank_N.log each; empty: none
  std::chrono::milliseconds grace = std::chrono::seconds(5);     // between SIGTERM and SIGKILL, and for other ranks to say what they saw
  int out_fd = 1, err_fd = 2;
};

// Runs until every rank has ended. Rank 0's standard output is passed on as it is; all else is prefixed "[rank N] ". The first rank that
// fails ends all others; its own words come last and once more by name, so that they are what a reader sees. SIGINT and SIGTERM are
// passed on; a second one kills. Returns the exit status of the rank at fault, 128 + n for a signal; 0 when all succeeded. A rank that
// merely lost its connection (status 6) is not at fault while another was killed or failed otherwise. Throws Error(rank_failed) when a
// process cannot be started. Not reentrant: it handles signals while it runs.
int run_local_ranks(const LocalJob& job);

}  // namespace meshwright::launch
