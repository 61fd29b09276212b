#include "engine/train/preemption.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

#include <atomic>

namespace meshwright::train {

namespace {

constexpr int64_t kSameWishNs = 200'000'000;

// Signals come on any thread. Lock-free atomics are all that a handler may share with them.
std::atomic<int> g_signal{0};
std::atomic<int64_t> g_since{0};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int number) {
  int before = errno;
  // The time first: whoever sees the signal sees the time too. Of two that come together either's will do.
  int64_t now = now_ns(), unset = 0;
  g_since.compare_exchange_strong(unset, now);
  int none = 0;
  if (!g_signal.compare_exchange_strong(none, number) && now - g_since.load() > kSameWishNs) {
    std::signal(number, SIG_DFL);
    ::raise(number);  // taken when this handler returns
  }
  errno = before;
}

}  // namespace

Preemption::Preemption() {
  g_signal = 0;
  g_since = 0;
  struct sigaction ours{};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;  // no wait of the transports or of the file system is cut short
  ::sigemptyset(&ours.sa_mask);
  for (int i = 0; i < kMany; ++i) {
    ::sigaction(kSignals[i], nullptr, &old_[i]);
    if (kSignals[i] != SIGTERM || old_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &ours, nullptr);
  }
}

Preemption::~Preemption() {
  for (int i = 0; i < kMany && !stays_; ++i) ::sigaction(kSignals[i], &old_[i], nullptr);
}

bool Preemption::asked() const { return g_signal.load() != 0; }

std::string Preemption::signal() const {
  int number = g_signal.load();
  return number == 0 ? "" : "SIG" + std::string(::sigabbrev_np(number));
}

}  // namespace meshwright::train
