#include "engine/train/preemption.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "sdk/files/clock.h"

namespace meshwright::train {

namespace {

// Signals come on any thread. Lock-free atomics are all that a handler may share with them.
std::atomic<int> g_signal{0};
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
  int before = errno;
  // The time first: whoever sees the signal sees the time too. When two come together either one's
  // time will do.
  int64_t now = base::monotonic_ms(), unset = 0;
  g_since.compare_exchange_strong(unset, now);
  int first = 0;
  if (g_signal.compare_exchange_strong(first, number)) {
    if (const char* words = g_words.load(); words != nullptr && number == SIGINT) say(words);
  } else if (!launch::same_wish(first, number, now - g_since.load())) {
    std::signal(number, SIG_DFL);
    ::raise(number);  // taken when this handler returns
  }
  errno = before;
}

}  // namespace

Preemption::Preemption(bool speaks) {
  g_signal = 0;
  g_since = 0;
  // On a terminal what the user typed, and the progress line, stand in the way.
  g_words = !speaks ? nullptr
            : ::isatty(STDERR_FILENO) == 1
                ? "\nSIGINT: saving after this step; Ctrl-C again ends at once\n"
                : "SIGINT: saving after this step; Ctrl-C again ends at once\n";
  struct sigaction ours{};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;  // no wait of the transports or of the file system is cut short
  ::sigemptyset(&ours.sa_mask);
  for (int i = 0; i < kMany; ++i) {
    ::sigaction(launch::kWishes[i], nullptr, &old_[i]);
    // Nobody ignores SIGUSR1 by accident, as nohup and a shell's background jobs do with others.
    if (launch::kWishes[i] == SIGUSR1 || old_[i].sa_handler != SIG_IGN)
      ::sigaction(launch::kWishes[i], &ours, nullptr);
  }
}

Preemption::~Preemption() {
  for (int i = 0; i < kMany && !stays_; ++i) ::sigaction(launch::kWishes[i], &old_[i], nullptr);
}

bool Preemption::asked() const { return g_signal.load() != 0; }

std::string Preemption::signal() {
  int number = g_signal.load();
  return number == 0 ? "" : "SIG" + std::string(::sigabbrev_np(number));
}

}  // namespace meshwright::train
