#include "sdk/base/host/forks.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace meshwright::base {

namespace {

// Read between fork() and exec, where nothing may be locked or allocated. A free place has 0.
std::array<std::atomic<int>, 16> g_closed_in_forks;

void in_the_child() {
  for (std::atomic<int>& fd : g_closed_in_forks)
    if (const int one = fd.exchange(0); one > 0) ::close(one);
}

}  // namespace

void close_in_forks(int fd) {
  [[maybe_unused]] static const int once = ::pthread_atfork(nullptr, nullptr, in_the_child);
  for (std::atomic<int>& place : g_closed_in_forks)
    if (int free = 0; place.compare_exchange_strong(free, fd)) return;
}

void let_go_in_forks(int fd) {
  for (std::atomic<int>& place : g_closed_in_forks)
    if (int mine = fd; place.compare_exchange_strong(mine, 0)) return;
}

}  // namespace meshwright::base
