// comm_traces/rank_N.json: what a rank had under way with others, for whoever asks why a run hung
// or died. Nothing is written while all goes well.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "meshwright/parallel/group.h"
#include "sdk/base/collective_log.h"

namespace meshwright::train {

class CommTrace {
 public:
  // Removes what earlier runs and attempts left.
  static void clear(const std::filesystem::path& run) noexcept;
  // `world` outlives this.
  CommTrace(World& world, const std::filesystem::path& run);
  ~CommTrace();
  CommTrace(const CommTrace&) = delete;
  CommTrace& operator=(const CommTrace&) = delete;

  // For the program, whose handlers are its own; one object at a time. From now on the launcher's
  // signal to end (launch::kEnd) leaves the file too, whatever this rank's threads do, and so does
  // a signal to end that no collective follows. `stop_signal`: its name; empty: none came.
  void watch(std::function<std::string()> stop_signal);
  // This rank ends with that error. In at most some seconds, and whatever happens.
  void failed(const Error& error) noexcept;
  // Takes back what a signal to end left.
  void on_success() noexcept;

 private:
  void write(const std::string& why, bool error);
  void listen();
  static void on_signal(int number);
  detail::CollectiveLog& log_;
  const int64_t rank_, world_;
  const std::filesystem::path folder_, file_;
  std::mutex mutex_;  // of the file
  bool written_ = false;
  std::function<std::string()> stop_signal_;
  int listens_ = -1, tells_ = -1;  // a pipe
  int process_ = 0;                // that watches
  std::atomic<bool> over_ = false;
  std::thread thread_;
  static inline std::atomic<CommTrace*> watching_{nullptr};
  static inline std::atomic<bool> writing_{false};  // the main thread does
};

}  // namespace meshwright::train
