// Collectives that run on a device: the host does not wait for them, so a watchdog notices when one
// fails or never ends.
#pragma once

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "activity.h"
#include "meshwright/error.h"
#include "meshwright/parallel/group.h"
#include "sdk/base/collective_log.h"
#include "sdk/base/transport.h"

namespace meshwright::detail {

// A group as errors name it.
struct Place {
  std::string axis;
  int64_t world_rank = 0;
  std::vector<int64_t> ranks;
  std::chrono::milliseconds timeout{};
  std::shared_ptr<LivenessCheck> liveness_check = {};
  std::string name() const;  // "dp [0, 1, 2]"
  // Ranks of the job that have ended, as far as anybody is told at once.
  std::vector<int64_t> ended() const;
  // Error(collective_timeout | collective_failed), by what LibTorch said. `awaited`: the place in
  // the group whose turn it was, where that is known and nobody can call the roll. `doing`: what
  // the collective was for.
  Error failure(const char* op, int64_t bytes, const std::string& what, int64_t awaited = -1,
                const Doing& doing = Activity::now()) const;
};

// Of LibTorch's words, or of ours.
bool says_timed_out(const std::string& what);

// How long what is under way may take to be aborted, NCCL's kernels among it, where a collective
// timed out so long ago: a fault ends a rank ten seconds after its timeout, with what its error
// takes.
constexpr std::chrono::milliseconds abort_limit(std::chrono::milliseconds since_timeout) {
  using std::chrono::milliseconds;
  return std::clamp(milliseconds(8500) - since_timeout, milliseconds(1000), milliseconds(8500));
}

class Watchdog {
 public:
  explicit Watchdog(std::shared_ptr<CollectiveLog> log) : log_(std::move(log)) {}
  ~Watchdog();
  void guard(std::shared_ptr<Transport> transport,
             std::shared_ptr<const Place> place);  // what to abort
  void add(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<const Place> place, const char* op,
           int64_t bytes, int64_t ticket);
  // The current stream of `device` waits for the work from here on. Its tensors, and with them
  // their autograd graph, are let go; what is watched is an event behind it.
  void waited(const c10::intrusive_ptr<c10d::Work>& work, at::Device device);
  // Looks no more, and ends the back ends while the devices' libraries are there, whoever still
  // holds them: after success together with the other ranks, else at once. Takes some seconds at
  // most.
  void end(bool success);
  // Throws the first failure. By then all transports are aborted, so that no kernel holds the
  // device.
  void check();

 private:
  struct Entry {
    c10::intrusive_ptr<c10d::Work> work;  // until its stream waits for it
    std::optional<c10::Event> event;
    std::shared_ptr<const Place> place;
    const char* op;
    int64_t bytes;
    int64_t ticket;  // in the log
    Doing doing;     // the thread that started it
    std::chrono::steady_clock::time_point deadline;
  };
  struct Guarded {
    std::shared_ptr<Transport> transport;
    std::shared_ptr<const Place> place;
  };
  static void abort_all(const std::vector<Guarded>& guarded);
  void stop();
  bool all_over();  // within a moment
  void run();
  void look(std::unique_lock<std::mutex>& lock);
  std::shared_ptr<CollectiveLog> log_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Entry> entries_;
  std::vector<Guarded> guarded_;
  std::optional<Error> failure_;
  bool stop_ = false, ended_ = false;
  std::thread thread_;
};

}  // namespace meshwright::detail
