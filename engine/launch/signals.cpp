#include "engine/launch/signals.h"

#include <cstdint>
#include <cstring>

#include "engine/launch/stop_signals.h"
#include "sdk/base/files/clock.h"

namespace meshwright::launch {

namespace {

volatile sig_atomic_t g_count = 0, g_signal = 0, g_stop = 0;
volatile int64_t g_since_ms =
    0;  // of the first signal; this program's one thread reads and writes it

void on_signal(int number) {
  if (number == SIGTSTP) {
    g_stop = 1;
    return;
  }
  int64_t now = base::monotonic_ms();
  if (g_count == 0)
    g_since_ms = now;
  else if (same_request(g_signal, number, now - g_since_ms))
    return;
  g_signal = number;
  g_count = g_count + 1;
}

}  // namespace

SignalHandlers::SignalHandlers() {
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
  // A parent that ignores SIGCHLD would have the kernel forget how ranks ended, and signals that it
  // blocks would not come.
  ours.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &ours, &old_child_);
  sigset_t heard;
  ::sigemptyset(&heard);
  for (int signal : kSignals) ::sigaddset(&heard, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &heard, &old_mask_);
}

SignalHandlers::~SignalHandlers() {
  ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  ::sigaction(SIGCHLD, &old_child_, nullptr);
  for (int i = 0; i < kMany; ++i) ::sigaction(kSignals[i], &old_[i], nullptr);
}

int SignalHandlers::count() { return g_count; }
int SignalHandlers::last() { return g_signal; }

bool SignalHandlers::take_stop() {
  if (!g_stop) return false;
  g_stop = 0;
  return true;
}

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return "signal " + std::to_string(number) + (name ? " (SIG" + std::string(name) + ")" : "");
}

}  // namespace meshwright::launch
