// The ranks of a local job: what signals the program hears while they run, who was at fault, and
// when they start again.
#include "engine/launch/supervisor.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/output.h"
#include "engine/launch/spawn.h"
#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"

namespace meshwright::launch {

namespace {

volatile sig_atomic_t g_count = 0, g_signal = 0, g_stop = 0;
// Of the first signal; this program's one thread reads and writes it.
volatile int64_t g_since_ms = 0;

void on_signal(int number) {
  if (number == SIGTSTP) {
    g_stop = 1;
    return;
  }
  const int64_t now = base::monotonic_ms();
  if (g_count == 0)
    g_since_ms = now;
  else if (same_request(g_signal, number, now - g_since_ms))
    return;
  g_signal = number;
  g_count = g_count + 1;
}

// Handlers of ours, put back by the destructor. What was ignored (nohup, a shell's background job)
// stays ignored, but for SIGCHLD; what was blocked is not meanwhile. One at a time in a process,
// which has one thread; what they hear is asked of them.
class SignalHandlers {
 public:
  SignalHandlers() {
    g_count = 0;
    g_signal = 0;
    g_stop = 0;
    struct sigaction ours{};
    sigemptyset(&ours.sa_mask);
    for (int i = 0; i < kMany; ++i) {
      ours.sa_handler = kSignals[i] == SIGPIPE ? SIG_IGN : on_signal;
      ::sigaction(kSignals[i], nullptr, &old_[i]);
      if (old_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &ours, nullptr);
    }
    // A parent that ignores SIGCHLD would have the kernel forget how ranks ended, and signals that
    // it blocks would not come.
    ours.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &ours, &old_child_);
    sigset_t heard;
    ::sigemptyset(&heard);
    for (int signal : kSignals) ::sigaddset(&heard, signal);
    ::pthread_sigmask(SIG_UNBLOCK, &heard, &old_mask_);
  }
  ~SignalHandlers() {
    ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
    ::sigaction(SIGCHLD, &old_child_, nullptr);
    for (int i = 0; i < kMany; ++i) ::sigaction(kSignals[i], &old_[i], nullptr);
  }
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;
  // Signals that ask for an end; one that repeats the same request (supervisor.h) does not count.
  static int count() { return g_count; }
  static int last() { return g_signal; }  // of those counted; 0: none
  // Whether SIGTSTP came since this was asked last.
  static bool take_stop() {
    if (g_stop == 0) return false;  // a store here would lose one that comes in between
    g_stop = 0;
    return true;
  }

 private:
  static constexpr int kMany = 6;
  static constexpr int kSignals[kMany] = {SIGINT, SIGHUP, SIGTERM, SIGUSR1, SIGTSTP, SIGPIPE};
  struct sigaction old_[kMany], old_child_;
  sigset_t old_mask_;
};

using Clock = std::chrono::steady_clock;

// "signal 9 (SIGKILL)"
std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return "signal " + std::to_string(number) + (name ? " (SIG" + std::string(name) + ")" : "");
}

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Ended from outside, or by a fault of its own; SIGABRT is also how a lost connection may end a
// rank.
bool killed_hard(int status) { return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT; }

// A stopped process (SIGSTOP, a debugger) neither computes nor answers, and the ranks that wait for
// it cannot see why.
bool is_stopped(pid_t pid) {
  std::string text = base::read_file("/proc/" + std::to_string(pid) + "/stat");
  size_t name_end = text.rfind(')');  // the name may hold anything
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

// To the user, and to what records the run, once that has begun.
void tell(const LocalJob& job, Sink& sink, const std::string& lines) {
  sink.err(lines);
  if (job.record && has_begun(job)) job.record(lines);
}

// One attempt of a job: its ranks, watched from their start to their end, and who was at fault.

class Attempt {
 public:
  Attempt(const LocalJob& job, Sink& sink, int64_t restart)
      : job_(job), sink_(sink), restart_(restart) {}
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  void run();
  int result() const;
  // "rank 1 was ended by signal 9 (SIGKILL)"; empty when nothing failed, or in a way that a new
  // attempt would repeat.
  std::string may_heal() const;

 private:
  struct Rank {
    int64_t number;
    Process process;
    RankOutput output;
    bool ended = false;
    int status = 0;
    Clock::time_point when;
  };
  void wait_for_news();
  void reap();
  void pass_on_signals();
  void judge();
  bool excused(const Rank& rank) const;
  bool ended_silently(const Rank& rank) const;
  static bool collateral(const Rank& rank);
  const Rank* at_fault() const;
  std::string stopped_ranks();
  void announce(const Rank& fault, const std::string& stopped);
  void aftermath();
  void signal_all(int number);
  bool all_ended() const;
  bool keeps_logs() const;

  const LocalJob& job_;
  Sink& sink_;
  int64_t restart_;
  std::deque<Rank> ranks_;
  int passed_on_ = 0;  // signals
  std::optional<Clock::time_point> first_failure_, told_, killed_;
  const Rank* fault_ = nullptr;  // decided when the others are told to end
  std::string fault_words_;
  std::vector<int64_t> stopped_;  // when the others were told to end
};

// Returns early when a signal comes.
void wait_before_restart(std::chrono::milliseconds pause) {
  for (Clock::time_point end = Clock::now() + pause;
       SignalHandlers::count() == 0 && Clock::now() < end;) {
    if (SignalHandlers::take_stop()) ::raise(SIGSTOP);
    ::poll(nullptr, 0, 20);
  }
}

}  // namespace

bool has_begun(const LocalJob& job) { return !job.begun || job.begun(); }

Attempt::~Attempt() {
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    ::kill(-rank.process.pid, SIGKILL);
    ::waitpid(rank.process.pid, nullptr, 0);
  }
}

void Attempt::wait_for_news() {
  std::vector<pollfd> fds;
  int timeout = 100;
  for (const Rank& rank : ranks_) {
    if (rank.ended) continue;
    rank.output.watch(fds);
    if (rank.process.exit.get() >= 0)
      fds.push_back({rank.process.exit.get(), POLLIN, 0});
    else
      timeout = 10;
  }
  ::poll(fds.data(), fds.size(), timeout);
  for (Rank& rank : ranks_)
    if (!rank.ended) rank.output.read();
}

void Attempt::reap() {
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    siginfo_t info{};
    pid_t pid = rank.process.pid;
    const bool told =
        ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    if (told ? info.si_pid != pid : errno != ECHILD) continue;
    rank.when = Clock::now();
    // What it started goes with it, while its number cannot be anybody else's.
    if (told) {
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, &rank.status, 0);
    } else {  // somebody else in this process has taken its status
      rank.status = W_EXITCODE(exit_status(ErrorCode::rank_failed), 0);
    }
    rank.ended = true;
    rank.output.finish();
  }
}

// A rank that is gone takes others with it: they find nobody, or lose connections. What they say is
// told apart from memory that ended, and from what else has the same status.
bool Attempt::collateral(const Rank& rank) {
  if (!WIFEXITED(rank.status)) return false;
  const int status = WEXITSTATUS(rank.status);
  const std::string& said = rank.output.said();
  return status == exit_status(ErrorCode::collective_failed) ||
         (status == exit_status(ErrorCode::rendezvous_failed) &&
          (said.empty() || said == code_string(ErrorCode::rendezvous_failed)));
}

bool Attempt::keeps_logs() const { return !job_.log_folder.empty() && has_begun(job_); }

bool Attempt::all_ended() const {
  return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.ended; });
}

void Attempt::signal_all(int number) {
  for (Rank& rank : ranks_)
    if (!rank.ended) ::kill(-rank.process.pid, number);
}

void Attempt::pass_on_signals() {
  if (SignalHandlers::take_stop()) {
    signal_all(SIGSTOP);
    ::raise(SIGSTOP);
    signal_all(SIGCONT);
  }
  if (int count = SignalHandlers::count(); count != passed_on_) {
    passed_on_ = count;
    sink_.hurry();
    signal_all(count > 1 ? SIGKILL : SignalHandlers::last());
    signal_all(SIGCONT);  // a stopped rank would not hear of it
  }
}

// With success, but not by a rank's own last word; or without a word, when it was asked for one.
bool Attempt::ended_silently(const Rank& rank) const {
  if (job_.done_status == 0 || !WIFEXITED(rank.status)) return false;
  return WEXITSTATUS(rank.status) == 0 ||
         (fault_ == &rank && !rank.output.said_error() && WEXITSTATUS(rank.status) == 1);
}

// Ended as it should: by itself, or because of the user's signal.
bool Attempt::excused(const Rank& rank) const {
  int code = code_of(rank.status);
  return code == job_.done_status || code == kPreempted ||
         (job_.any_status && WIFEXITED(rank.status) && !rank.output.said_error()) ||
         (passed_on_ > 0 && WIFSIGNALED(rank.status) &&
          (WTERMSIG(rank.status) == SignalHandlers::last() || passed_on_ > 1));
}

// The first to fail, but one that lost a connection only if nothing else happened. Within a moment
// of each other the order in which deaths are seen says nothing: a killed rank comes before one
// that failed.
const Attempt::Rank* Attempt::at_fault() const {
  auto first = [&](auto&& wanted) {
    const Rank* out = nullptr;
    for (const Rank& rank : ranks_)
      if (rank.ended && !excused(rank) && wanted(rank) && (out == nullptr || rank.when < out->when))
        out = &rank;
    return out;
  };
  const Rank* fault = first([](const Rank& rank) { return !collateral(rank); });
  if (fault == nullptr) return first([](const Rank&) { return true; });
  const Rank* killed = first([](const Rank& rank) { return killed_hard(rank.status); });
  return killed && killed->when - fault->when < std::chrono::milliseconds(100) ? killed : fault;
}

void Attempt::judge() {
  const Clock::time_point now = Clock::now();
  if (told_) {
    if (!killed_ && now - *told_ > job_.grace) {
      signal_all(SIGKILL);  // ends a stopped process too
      killed_ = now;
    }
    return;
  }
  const Rank* fault = at_fault();
  if (fault == nullptr) {
    for (Rank& rank : ranks_) rank.output.release_old();
    return;
  }
  if (!first_failure_) first_failure_ = now;
  // Time for the others to say what they saw, and for the one whose death others noticed first.
  auto moment = std::chrono::milliseconds(collateral(*fault) ? 1000 : 300);
  if (now - *first_failure_ < moment && !all_ended()) return;
  told_ = now;
  fault_ = fault;
  std::string stopped = stopped_ranks();
  signal_all(kEnd);
  signal_all(SIGCONT);  // a stopped process takes no other signal than this one
  // After a signal of the user it is no news that connections broke.
  if (passed_on_ == 0 || !collateral(*fault)) announce(*fault, collateral(*fault) ? stopped : "");
}

// "rank 1 (process 4242) is", "ranks 1 (...), 3 (...) are"; empty: none.
std::string Attempt::stopped_ranks() {
  std::string out;
  int count = 0;
  for (const Rank& rank : ranks_) {
    if (rank.ended || !is_stopped(rank.process.pid)) continue;
    stopped_.push_back(rank.number);
    if (count++ < 8)
      out += (out.empty() ? "" : ", ") + std::to_string(rank.number) + " (process " +
             std::to_string(rank.process.pid) + ")";
  }
  return count == 0 ? "" : (count == 1 ? "rank " : "ranks ") + out + (count == 1 ? " is" : " are");
}

void Attempt::announce(const Rank& fault, const std::string& stopped) {
  Rank& rank = ranks_[static_cast<size_t>(fault.number)];
  fault_words_ = rank.output.take_held();
  std::string text = rank.output.prefixed(fault_words_),
              who = "rank " + std::to_string(rank.number), ours;  // what it did not say itself
  if (WIFSIGNALED(rank.status)) {
    ours = "error[" + code_string(ErrorCode::rank_failed) + "]: " + who + " was ended by " +
           signal_name(WTERMSIG(rank.status)) + "\n";
    if (WTERMSIG(rank.status) == SIGKILL)
      ours += "  = help: if nobody sent it, look for the kernel's out-of-memory killer (dmesg)\n";
  } else if (ended_silently(fault)) {
    ours = "error[" + code_string(ErrorCode::plugin_exited) + "]: " + who +
           (WEXITSTATUS(rank.status) == 0 ? " ended with exit status 0 before it was done: "
                                          : " ended with exit status 1 and without a word: ") +
           job_.foreign + ", or a library, called exit() or _exit()\n";
  } else if (fault_words_.empty()) {
    ours = "error[" + code_string(ErrorCode::rank_failed) + "]: " + who +
           " failed with exit status " + std::to_string(WEXITSTATUS(rank.status)) + "\n";
  }
  if (!ours.empty() && keeps_logs())
    ours += "  = help: its output is in " +
            (job_.log_folder / ("rank_" + std::to_string(rank.number) + ".log")).string() + "\n";
  text += ours;
  if (!stopped.empty())
    text += stopped +
            " stopped by a signal (SIGSTOP, SIGTTIN) or a debugger, and the others waited; all are "
            "ended\n";
  else if (job_.ranks > 1)
    text += who + " failed first; " + (job_.ranks == 2 ? "the other is" : "all others are") +
            " ended\n";
  tell(job_, sink_, text);
}

// What the others had to say: few voices, and none twice.
void Attempt::aftermath() {
  constexpr int kVoices = 3;
  int said = 0, silent = 0;
  std::vector<std::string> heard{fault_words_};
  for (Rank& rank : ranks_) {
    std::string words = rank.output.take_held();
    if (words.empty() || (fault_ != nullptr && passed_on_ > 0 && collateral(rank))) continue;
    if (std::ranges::find(heard, words) != heard.end() || ++said > kVoices) {
      ++silent;
      continue;
    }
    sink_.err(rank.output.prefixed(words));
    heard.push_back(std::move(words));
  }
  if (silent > 0)
    sink_.err("(" + std::to_string(silent) + (silent == 1 ? " more rank" : " more ranks") +
              " ended with the same or a similar message" +
              (!keeps_logs() ? "" : "; all are in " + job_.log_folder.string()) + ")\n");
  if (const std::string verdict = job_.verdict ? job_.verdict(stopped_) : ""; !verdict.empty())
    tell(job_, sink_, verdict);
}

int Attempt::result() const {
  if (fault_ != nullptr && (passed_on_ == 0 || !collateral(*fault_)))
    return ended_silently(*fault_) ? exit_status(ErrorCode::plugin_exited)
                                   : code_of(fault_->status);
  bool by_signal = fault_ != nullptr, preempted = false;
  for (const Rank& rank : ranks_) {
    by_signal = by_signal || WIFSIGNALED(rank.status);
    preempted = preempted || code_of(rank.status) == kPreempted;
  }
  const int good = job_.any_status && !ranks_.empty() ? code_of(ranks_.front().status) : 0;
  return by_signal ? 128 + SignalHandlers::last() : preempted ? kPreempted : good;
}

std::string Attempt::may_heal() const {
  if (fault_ == nullptr || passed_on_ > 0) return "";
  std::string who = "rank " + std::to_string(fault_->number);
  if (WIFSIGNALED(fault_->status))
    return who + " was ended by " + signal_name(WTERMSIG(fault_->status));
  if (ended_silently(*fault_)) return "";
  int code = WEXITSTATUS(fault_->status);
  return code == 1 || code == exit_status(ErrorCode::rank_failed) ||
                 code == exit_status(ErrorCode::collective_failed)
             ? who + " failed with exit status " + std::to_string(code)
             : "";
}

void Attempt::run() {
  {
    Listener listener = listen_on_free_port();
    for (int64_t number = 0; number < job_.ranks; ++number) {
      Process process = spawn_rank(job_, number, restart_, listener);
      Descriptor out = std::move(process.out), err = std::move(process.err);
      pid_t pid = process.pid;
      try {
        RankOutput output(job_, sink_, number, restart_, std::move(out), std::move(err));
        ranks_.push_back({number, std::move(process), std::move(output), false, 0, {}});
      } catch (const Error&) {
        ::kill(-pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
        throw;
      }
    }
  }
  while (!all_ended()) {
    wait_for_news();
    reap();
    pass_on_signals();
    judge();
  }
  aftermath();
}

int run_local_ranks(const LocalJob& job) {
  constexpr std::chrono::milliseconds kSoon = std::chrono::seconds(1), kFirstPause(250),
                                      kLongestPause = std::chrono::seconds(30);
  SignalHandlers handlers;
  Sink sink(job.out_fd, job.err_fd);
  int code = 0;
  std::chrono::milliseconds pause{0};
  for (int64_t restart = 0;; ++restart) {
    Clock::time_point started = Clock::now();
    if (job.begins) job.begins();
    Attempt attempt(job, sink, restart);
    attempt.run();
    code = attempt.result();
    std::string why = attempt.may_heal();
    if (SignalHandlers::count() > 0 || why.empty() || restart == job.max_restarts) {
      if (!why.empty() && job.max_restarts > 0 && SignalHandlers::count() == 0)
        tell(job, sink, "no restart is left of " + std::to_string(job.max_restarts) + "\n");
      break;
    }
    std::string text = "restart " + std::to_string(restart + 1) + " of " +
                       std::to_string(job.max_restarts) + " after " + why;
    if (job.continues) text += ", " + job.continues();
    bool soon = Clock::now() - started < kSoon;
    pause = soon ? std::clamp(pause * 2, kFirstPause, kLongestPause) : std::chrono::milliseconds(0);
    if (soon)
      text += "; within a second of its start: " + std::to_string(pause.count()) + " ms to wait";
    tell(job, sink, text + "\n");
    wait_before_restart(pause);
    if (SignalHandlers::count() > 0) {
      code = 128 + SignalHandlers::last();
      break;
    }
  }
  if (SignalHandlers::count() > 0 && code == 128 + SignalHandlers::last())
    tell(job, sink, "stopped by " + signal_name(SignalHandlers::last()) + "\n");
  return code;
}

}  // namespace meshwright::launch
