// What a child by fork() without exec must not have: it may outlive what it came from.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "meshwright/error.h"

namespace meshwright::base {

// The descriptor is closed in every such child from now on, until it is let go of.
void close_in_forks(int fd);
void let_go_in_forks(int fd);

// A run folder belongs to one run at a time: its file `lock`, which names the process that has it.

// The process that holds a folder.
struct LockOwner {
  std::string host;
  std::string boot;  // the same for all processes of one kernel, containers too, and another one
                     // after a reboot
  std::string pid_space;  // the namespace in which `pid` is its number
  int64_t pid = 0;
  int64_t start_time =
      0;  // in ticks since the boot: tells the process from a later one of the same number
  std::string since;  // for people: 2026-11-22T04:30:00Z
  int64_t file = 0;   // number of its lock file: that of a copy is another; 0: not known
  bool operator==(const LockOwner&) const = default;
};
LockOwner this_process();
// The file's text, and back; nullopt when it does not read so (the file is empty, or is being
// written).
std::string lock_text(const LockOwner& owner);
std::optional<LockOwner> parse_lock(const std::string& text);

// Whether the process is there, as this one can see. Unknown: it is of another host or container,
// or /proc does not tell.
enum class Life : uint8_t { alive, dead, unknown };
Life life_of(const LockOwner& owner, const LockOwner& self);
// Who has the folder, as its lock says; nullopt: nobody, or a process that is dead or has the
// folder of which this one is a copy.
std::optional<LockOwner> owner_of(const std::filesystem::path& folder);

// Holds `folder`/lock from construction to destruction. The kernel lets go of it when the process
// dies, however it dies; programs that were started with descriptor() hold it too, children by
// fork() do not. Other hosts, whose kernels may know nothing of it, go by the file's text and by
// its time of change, which a thread renews.
class RunLock {
 public:
  struct Settings {
    LockOwner self = this_process();
    std::chrono::milliseconds heartbeat = std::chrono::seconds(5);
    std::chrono::milliseconds silence =
        std::chrono::seconds(60);  // an owner on another host that is silent for so long is dead
    std::chrono::milliseconds moment =
        std::chrono::seconds(10);  // what a dead owner leaves may hold its lock for so long
    bool kernel_locks = true;      // false: as on a file system that has none
    std::function<void(const std::string&)> waiting =
        {};  // hears why the constructor takes its time
    // Another host took the folder over, which can only happen to a process that was stopped for
    // long. Called by the thread.
    std::function<void(const Error&)> lost = {};
  };
  // Makes the folder when absent. Throws Error(run_folder_locked) when a living process has it,
  // Error(output_unwritable). The lock of a dead owner is taken over: of a process of this kernel
  // at once; of another host, or of a file system without locks, once it has been silent for long
  // enough, which the constructor waits for.
  explicit RunLock(const std::filesystem::path& folder) : RunLock(folder, Settings()) {}
  RunLock(const std::filesystem::path& folder, Settings settings);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  int descriptor() const { return fd_; }
  // Whose lock was taken over; nullopt: nobody had it, or the last one gave it back.
  const std::optional<LockOwner>& former() const { return former_; }

 private:
  bool try_to_take();
  bool lock_in_kernel();
  bool is_named() const;
  bool is_copied(const LockOwner& owner) const;
  bool is_dead(const LockOwner& owner, bool locked);
  bool heartbeat_stops(const LockOwner& owner);
  std::chrono::nanoseconds clock_of_folder() const;
  std::optional<LockOwner> read() const;
  void write();
  void sweep() const;
  void make_again();
  void keep_alive();
  Error taken_by(const std::optional<LockOwner>& owner) const;

  std::filesystem::path folder_, path_;
  Settings settings_;
  int fd_ = -1;
  std::optional<LockOwner> former_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace meshwright::base
