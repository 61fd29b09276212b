// Signals that ask a run to save and end: Ctrl-C, a terminal that goes away, a batch system.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshwright::launch {

inline constexpr int kStopSignals[] = {SIGINT, SIGHUP, SIGTERM, SIGUSR1};
// From the launcher to a rank that is not at fault: it ends. None takes it as the request to save.
inline constexpr int kEnd = SIGUSR2;

// Whether a signal repeats the request that `first` told so many milliseconds ago, instead of
// asking for an end at once. A batch system signals every process of a job, and our launcher passes
// on what it got: within a fifth of a second all of it is one request. A terminal that goes away is
// told by the kernel, by the shell, and by the kernel again once the shell has ended; after another
// signal it is no request at all, since a user who has pressed Ctrl-C may well close the window.
// For signal handlers.
inline bool same_request(int first, int number, int64_t ms_since_first) {
  constexpr int64_t kSameRequestMs = 200, kHangUpMs = 3000;
  if (ms_since_first <= kSameRequestMs) return true;
  return number == SIGHUP && (first != SIGHUP || ms_since_first <= kHangUpMs);
}

// Starts local ranks, forwards what they print, and ends all of them when one fails.

// Variables that tell a rank the number of a descriptor.
inline constexpr const char kRunLock[] = "MESHWRIGHT_RUN_LOCK",
                            kConfiguration[] = "MESHWRIGHT_CONFIGURATION",
                            kAttempts[] = "MESHWRIGHT_ATTEMPTS";

struct LocalJob {
  std::vector<std::string> argv;  // the program and its arguments, the same for every rank
  int64_t ranks = 1;
  std::vector<std::pair<std::string, std::string>>
      environment;                   // beside RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR ...
  std::filesystem::path log_folder;  // exists; rank_N.log each, appended to; empty: none
  std::chrono::milliseconds grace = std::chrono::seconds(5);  // between SIGUSR2 and SIGKILL
  int64_t max_restarts = 0;
  // By which a rank says that it is done; when it is not 0, a rank that ends with 0 was ended by
  // code that is not ours, which is a failure of what `foreign` names: "the plugin acme 1.0.0".
  int done_status = 0;
  std::string foreign = {};
  // A rank that ends by itself and without an error has not failed, whatever its status: rank 0's
  // is the job's result.
  bool any_status = false;
  std::function<std::string()>
      continues;  // where ranks that start again go on from: "from step_00000050"; none: not said
  std::function<void(const std::string& lines)>
      record;  // hears of failures, restarts and signals beside the user; may be absent
  // Whether the run has begun of which logs and records are kept: until then they are held back, so
  // that a start which is refused leaves no word in those of another. Absent: it has.
  std::function<bool()> begun = {};
  // Called before the ranks start, each time; may be absent.
  std::function<void()> begins = {};
  // What the ranks left that says more of their end, as lines; empty: nothing. Called when all have
  // ended, with the ranks that were seen to be stopped; may be absent.
  std::function<std::string(const std::vector<int64_t>& stopped)> verdict = {};
  int out_fd = 1, err_fd = 2;
  // That every rank gets too: the variable that tells its number, and the number, above those that
  // a child is given. Whoever dies last lets go of a lock.
  std::vector<std::pair<std::string, int>> descriptors = {};
};

// Runs until every rank has ended. Each rank finds itself in RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and MESHWRIGHT_LOCAL_JOB; rank 0 inherits the
// listening socket of that port as MESHWRIGHT_STORE_FD.
//
// Output: rank 0's is passed on as it is, at once on a terminal; that of others in whole lines
// prefixed "[rank N] ". A rank's words from a line that begins with "error[" on are held back for a
// moment, so that when ranks fail together the one at fault speaks first. All of it also goes to
// the logs.
//
// Failure: the first rank that fails ends all others (SIGUSR2, which no rank takes as the request
// to save and end; SIGKILL after `grace`; stopped ones are continued, to take it). A rank that
// merely lost a connection or timed out (exit 4 or 6) is not at fault when another was killed or
// failed otherwise. Returns the exit status of the rank at fault, 128 + n when a signal ended it; 0
// when all succeeded.
//
// Restarts: after a fault that may not come again (a rank ended by a signal, or exit 1, 4 or 6,
// which a lost host or a busy port cause; not a mistake in the job, its numbers or its data) all
// ranks start anew, at most max_restarts times, with MESHWRIGHT_RESTART = 1, 2 ... in their
// environment. Ranks that end within a second of their start wait before the next one: 1/4 s, twice
// as long each time.
//
// Signals: SIGINT, SIGHUP, SIGTERM and SIGUSR1 are passed on, once, and the ranks may take their
// time to save; a second one that is not the same request again (supervisor.h) kills all. Then
// returns 75 or 0 when all ranks ended so by themselves, else 128 + n; no restart follows. What was
// ignored (nohup) stays ignored. SIGTSTP stops the ranks too. Handlers are put back on return. Not
// reentrant.
//
// Throws Error(rank_failed | rendezvous_failed | output_unwritable) when a rank cannot be started;
// those already started are killed.
int run_local_ranks(const LocalJob& job);

// For the rank, first thing in main(): when the process that started it dies, however it dies, the
// kernel kills this one too. Does nothing in a process that run_local_ranks() did not start.
// Returns false when that parent is gone already: leave then.
bool end_with_parent();

// For the rank, once: all bytes of the descriptor that the variable tells, which is closed.
// nullopt: it is not set. Throws Error(internal).
std::optional<std::string> handed_to_rank(const char* variable);
// All bytes of such memory, which several processes share. `what` it is, for Error(internal).
std::string bytes_of(int memory, const std::string& what);

}  // namespace meshwright::launch
