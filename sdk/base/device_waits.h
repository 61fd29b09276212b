// How long a thread has waited for other ranks, for whoever measures a step.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "meshwright/export.h"

namespace meshwright::detail {

// Nanoseconds that this thread has spent inside of collectives, since it began: putting down what
// it sends, waiting, adding up what came. What happens while it computes does not count. Nothing of
// collectives on a device, whose host does not wait.
MESHWRIGHT_API int64_t waited_ns() noexcept;

// While one of these lives, this thread waits.
class MESHWRIGHT_API Waiting {
 public:
  Waiting() noexcept;
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  int64_t since_;
};

}  // namespace meshwright::detail

namespace meshwright {

// How long a device has waited for other ranks, by events around each wait.

class World;

namespace detail {

// Where the stream that computes waits for a collective it has nothing else to do: what lies
// between an event before the wait and one behind it is communication that nothing hides. The host
// reads them when it knows by other means that they are reached: it waits for nothing. Threads of
// autograd wait, too, so this is of a process and not of a thread.
class DeviceWaits {
  struct Pair {
    c10::Event begin, end;
  };
  static c10::Stream current(c10::Device device) {
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }

 public:
  // Around a wait of the device's current stream. Nothing on another stream than the one that is
  // watched, whose waits hide behind it, and on a CPU.
  class Wait {
   public:
    Wait(DeviceWaits& waits, c10::Device device) : waits_(waits) {
      if (device.is_cpu()) return;
      const c10::Stream stream = current(device);
      {
        const std::lock_guard lock(waits_.mutex_);
        if (waits_.stream_ != stream) return;
        if (!waits_.spare_.empty()) {
          pair_ = std::move(waits_.spare_.back());
          waits_.spare_.pop_back();
        }
      }
      constexpr auto kWithTime = c10::EventFlag::BACKEND_DEFAULT;
      if (!pair_)
        pair_ = Pair{c10::Event(device.type(), kWithTime), c10::Event(device.type(), kWithTime)};
      pair_->begin.record(stream);
      stream_ = stream;
    }
    ~Wait() {
      if (!stream_) return;
      try {
        pair_->end.record(*stream_);
        const std::lock_guard lock(waits_.mutex_);
        waits_.under_way_.push_back(std::move(*pair_));
      } catch (const std::exception&) {  // of a device that has failed, which the wait itself tells
      }
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    DeviceWaits& waits_;
    std::optional<c10::Stream> stream_;
    std::optional<Pair> pair_;
  };

  // From here on waits of the device's current stream are measured, those before are forgotten.
  void watch(c10::Device device) {
    take_ms();
    const c10::Stream stream = current(device);
    const std::lock_guard lock(mutex_);
    stream_ = stream;
  }
  // Milliseconds of the waits that are over, each counted once.
  double take_ms() {
    const std::lock_guard lock(mutex_);
    double out = 0;
    std::vector<Pair> left;
    left.swap(left_);  // whose room it keeps
    for (Pair& pair : under_way_) {
      const bool over = pair.end.query();
      if (over) out += pair.begin.elapsedTime(pair.end);
      (over ? spare_ : left).push_back(std::move(pair));
    }
    under_way_.clear();
    under_way_.swap(left);
    left_.swap(left);
    return out;
  }
  void clear() {  // before the device's libraries go
    const std::lock_guard lock(mutex_);
    stream_.reset();
    under_way_.clear();
    spare_.clear();
  }

 private:
  std::mutex mutex_;
  std::optional<c10::Stream> stream_;
  std::vector<Pair> under_way_, spare_, left_;
};

// Of the world's groups. On CPUs nothing is ever in it.
MESHWRIGHT_API DeviceWaits& device_waits(World& world);

}  // namespace detail

}  // namespace meshwright
