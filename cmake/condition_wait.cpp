// GCC 12 gave std::condition_variable::wait() a new version of its symbol (GLIBCXX_3.4.30), which
// is the only thing here that libstdc++ of GCC 11 has not. With a copy of its own a library runs on
// RHEL 9 and what is as old.
#include <condition_variable>
#include <mutex>

extern "C" __attribute__((visibility("hidden"))) void meshwright_condition_wait(
    std::condition_variable* condition, std::unique_lock<std::mutex>& lock) noexcept
    __asm__("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");

void meshwright_condition_wait(std::condition_variable* condition,
                               std::unique_lock<std::mutex>& lock) noexcept {
  ::pthread_cond_wait(condition->native_handle(), lock.mutex()->native_handle());
}
