#include "host_lane.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace meshwright::detail {

namespace {

class LaneFlight final : public Flight {
 public:
  LaneFlight(std::future<void> over, int64_t awaited) : over_(std::move(over)), awaited_(awaited) {}
  void wait() override { over_.get(); }
  int64_t awaited() const override { return awaited_; }

 private:
  std::future<void> over_;
  int64_t awaited_;
};

}  // namespace

SharedMemoryRing::Sizes HostLane::room(int64_t slot) {
  SharedMemoryRing::Sizes sizes;
  sizes.slot[SharedMemoryRing::reduce] = slot;
  sizes.ring[SharedMemoryRing::reduce] = 3;
  return sizes;
}

HostLane::HostLane(std::shared_ptr<Transport> across, std::unique_ptr<SharedMemoryRing> ring,
                   int64_t slot, std::shared_ptr<const Place> place, int64_t rank,
                   const HostMap& map)
    : across_(std::move(across)),
      ring_(std::move(ring)),
      slot_(slot),
      place_(std::move(place)),
      map_(map),
      host_(map.host[static_cast<size_t>(rank)]),
      local_(map.local[static_cast<size_t>(rank)]),
      scratch_(4) {}

HostLane::~HostLane() {
  {
    std::lock_guard lock(mutex_);
    given_up_ = true;
    if (awaited_ != nullptr)
      for (const auto& handle : awaited_->handles()) {
        try {
          handle->abort();
        } catch (const std::exception&) {  // it ends when its time is over
        }
      }
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Transport::FlightPtr HostLane::start(Job job, int64_t awaited) {
  // What a job holds is let go before anybody hears of its end.
  std::packaged_task<void()> task([this, kept = std::move(job)]() mutable {
    const Job now = std::move(kept);
    kept = nullptr;
    if (failure_) std::rethrow_exception(failure_);
    try {
      now(*this);
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  });
  auto flight = std::make_unique<LaneFlight>(task.get_future(), awaited);
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  wake_.notify_all();
  return flight;
}

void HostLane::run() {
  const c10::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return given_up_ || !tasks_.empty(); });
    if (given_up_) return;
    std::packaged_task<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

Transport::FlightPtr HostLane::exchange(const std::vector<PeerMessage>& messages) {
  std::vector<PeerMessage> some;
  for (const PeerMessage& message : messages)
    if (message.tensor.numel() > 0) some.push_back(message);
  return some.empty() ? nullptr : across_->send_receive(some);
}

void HostLane::await(Transport::FlightPtr& flight) {
  if (!flight) return;
  {
    std::lock_guard lock(mutex_);
    if (given_up_) throw GivenUp();
    awaited_ = flight.get();
  }
  // Never later than the wait: the destructor looks at it.
  struct Over {
    HostLane& lane;
    ~Over() {
      std::lock_guard lock(lane.mutex_);
      lane.awaited_ = nullptr;
    }
  };
  {
    const Over over{*this};
    flight->wait();
  }
  if (given_up_) throw GivenUp();
  flight.reset();
}

at::Tensor HostLane::scratch(int64_t index) {
  at::Tensor& kept = scratch_[static_cast<size_t>(index)];
  if (!kept.defined()) kept = at::empty({slot_ + (1 << 16)}, at::kByte);
  return kept;
}

}  // namespace meshwright::detail
