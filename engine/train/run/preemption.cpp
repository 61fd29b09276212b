#include "engine/train/run/preemption.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "engine/launch/rank_file.h"
#include "sdk/base/files/durable.h"

namespace meshwright::train {

SaveRequest::SaveRequest(const std::filesystem::path& run) : file_(run / base::kSaveRequestFile) {}

bool SaveRequest::asked() {
  constexpr std::chrono::milliseconds kBetween(500);
  const auto now = std::chrono::steady_clock::now();
  if (ignored_ || now - looked_ < kBetween) return false;
  looked_ = now;
  std::error_code failed;
  return std::filesystem::exists(file_, failed);
}

void SaveRequest::grant(const std::function<void(const std::string&)>& warn) {
  std::error_code failed;
  std::filesystem::remove(file_, failed);
  if (!failed) return;
  ignored_ = true;
  warn("warning: " + file_.string() + " cannot be removed (" + failed.message() +
       "); this run saves for it once, and asks no more");
}

namespace {

// Signals come on any thread. Lock-free atomics are all that a handler may share with them.
std::atomic<int> g_signal{0}, g_process{0};
std::atomic<int64_t> g_since{0};
std::atomic<const char*> g_words{nullptr};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

// A step may take minutes, and whoever has pressed Ctrl-C wants to know now.
void say(const char* words) {
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0)
    return;  // a full pipe must not stop training
  if (::write(STDERR_FILENO, words, std::strlen(words)) < 0) return;  // the terminal may be gone
}

void on_signal(int number) {
  if (::getpid() != g_process.load()) {  // a child by fork(), which has nothing to save
    std::signal(number, SIG_DFL);
    ::raise(number);
    return;
  }
  int before = errno;
  // The time first: whoever sees the signal sees the time too. When two come together either one's
  // time will do.
  int64_t now = base::monotonic_ms(), unset = 0;
  g_since.compare_exchange_strong(unset, now);
  int first = 0;
  if (g_signal.compare_exchange_strong(first, number)) {
    if (const char* words = g_words.load(); words != nullptr && number == SIGINT) say(words);
  } else if (!launch::same_request(first, number, now - g_since.load())) {
    std::signal(number, SIG_DFL);
    ::raise(number);  // taken when this handler returns
  }
  errno = before;
}

// Whether the thread that forks blocks the stop signals for a SignalThread, which its child has
// not.
std::atomic<bool> g_elsewhere{false};

sigset_t stop_signals() {
  sigset_t out;
  ::sigemptyset(&out);
  for (int number : launch::kStopSignals) ::sigaddset(&out, number);
  return out;
}

void hear_in_the_child() {
  const sigset_t ours = stop_signals();
  if (g_elsewhere.load()) ::pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
}

}  // namespace

SignalThread::SignalThread() : process_(::getpid()), over_(::eventfd(0, EFD_CLOEXEC)) {
  if (over_ < 0) return;  // as where no thread may be had
  [[maybe_unused]] static const int once = ::pthread_atfork(nullptr, nullptr, hear_in_the_child);
  const sigset_t ours = stop_signals();
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  try {
    thread_ = std::thread([this, ours] {
      ::pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
      pollfd over{over_, POLLIN, 0};
      while (::poll(&over, 1, -1) < 0 && errno == EINTR) {
      }
    });
  } catch (const std::system_error&) {
    // No more threads may be had: the handlers' own stack (SA_ONSTACK) has to do.
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  if (!thread_.joinable()) return;
  ::pthread_sigmask(SIG_BLOCK, &ours, nullptr);
  g_elsewhere = true;
}

SignalThread::~SignalThread() {
  if (process_ != ::getpid()) {  // a copy in a child, which has no such thread
    if (thread_.joinable()) thread_.detach();
    return;
  }
  if (thread_.joinable()) {
    ::eventfd_write(over_, 1);
    thread_.join();
    g_elsewhere = false;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  if (over_ >= 0) ::close(over_);
}

Preemption::Preemption(bool speaks) {
  g_process = ::getpid();
  g_signal = 0;
  g_since = 0;
  // On a terminal what the user typed, and the progress line, stand in the way.
  g_words = !speaks ? nullptr
            : ::isatty(STDERR_FILENO) == 1
                ? "\nSIGINT: saving after this step; Ctrl-C again ends at once\n"
                : "SIGINT: saving after this step; Ctrl-C again ends at once\n";
  struct sigaction ours{};
  ours.sa_handler = on_signal;
  // No wait of the transports or of the file system is cut short, and no frame is written where a
  // matrix product has its operands (SignalThread).
  ours.sa_flags = SA_RESTART | SA_ONSTACK;
  ::sigemptyset(&ours.sa_mask);
  for (int i = 0; i < kMany; ++i) {
    ::sigaction(launch::kStopSignals[i], nullptr, &old_[i]);
    // Nobody ignores SIGUSR1 by accident, as nohup and a shell's background jobs do with others.
    if (launch::kStopSignals[i] == SIGUSR1 || old_[i].sa_handler != SIG_IGN)
      ::sigaction(launch::kStopSignals[i], &ours, nullptr);
  }
}

Preemption::~Preemption() {
  for (int i = 0; i < kMany && !stays_; ++i)
    ::sigaction(launch::kStopSignals[i], &old_[i], nullptr);
}

bool Preemption::asked() const { return g_signal.load() != 0; }

std::string Preemption::signal() {
  int number = g_signal.load();
  return number == 0 ? "" : "SIG" + std::string(::sigabbrev_np(number));
}

}  // namespace meshwright::train
