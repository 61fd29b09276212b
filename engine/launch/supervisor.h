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
  std::filesystem::path log_folder;                              // exists; rank_N.log each; empty: none
  std::chrono::milliseconds grace = std::chrono::seconds(5);     // between SIGTERM and SIGKILL
  int out_fd = 1, err_fd = 2;
};

// Runs until every rank has ended. Each rank finds itself in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
// and MESHWRIGHT_LOCAL_JOB; rank 0 inherits the listening socket of that port as MESHWRIGHT_STORE_FD.
//
// Output: rank 0's is passed on as it is, at once on a terminal; that of others in whole lines prefixed "[rank N] ". A rank's words from
// a line that begins with "error[" on are held back for a moment, so that when ranks fail together the one at fault speaks first. All of
// it also goes to the logs.
//
// Failure: the first rank that fails ends all others (SIGTERM, then SIGKILL after `grace`; stopped ones are continued, to take it). A rank
// that merely lost a connection or waited in vain (exit 4 or 6) is not at fault when another was killed or failed otherwise. Returns the
// exit status of the rank at fault, 128 + n when a signal ended it; 0 when all succeeded.
//
// Signals: SIGINT, SIGTERM and SIGUSR1 are passed on; a second one kills all. Then returns 75 or 0 when all ranks ended so by
// themselves, else 128 + n. SIGTSTP stops the ranks too. Handlers are put back on return. Not reentrant.
//
// Throws Error(rank_failed | rendezvous_failed | output_unwritable) when a rank cannot be started; those already started are killed.
int run_local_ranks(const LocalJob& job);

// For the rank, first thing in main(): when the process that started it dies, however it dies, the kernel kills this one too. Does
// nothing in a process that run_local_ranks() did not start. Returns false when that parent is gone already: leave then.
bool end_with_parent();

}  // namespace meshwright::launch
