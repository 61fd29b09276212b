#include "host_lane.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

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

// Sums over a group: on each host, then over the hosts.

using at::Tensor;

namespace {

// into += from, or into = from; by this thread alone: LibTorch spreads more elements over threads.
void put_or_add(char* into, const char* from, int64_t count, at::ScalarType type, bool put) {
  constexpr int64_t kAlone = 32000;
  const auto width = static_cast<int64_t>(c10::elementSize(type));
  if (put) {
    std::memcpy(into, from, bytes_in(count, width));
    return;
  }
  const at::TensorOptions options = at::TensorOptions().dtype(type);
  for (int64_t at = 0; at < count; at += kAlone) {
    const int64_t some = std::min(kAlone, count - at);
    Tensor sum = at::from_blob(into + bytes_in(at, width), {some}, options);
    at::add_out(sum, sum,
                at::from_blob(const_cast<char*>(from) + bytes_in(at, width), {some}, options));
  }
}

// Each rank sums a part of every piece: its host's, one alone too, first; of that a share of the
// hosts', which goes to the hosts; the parts then go round on the host. Three pieces are under way
// at once.
class SumEverywhere {
 public:
  SumEverywhere(HostLane& lane, const Tensor& tensor)
      : lane_(lane),
        flat_(tensor.view({-1})),
        memory_(memory_of(tensor)),
        pieces_(tensor.numel(), static_cast<int64_t>(tensor.element_size()), lane.slot()) {}
  void run() {
    for (int64_t i = 0; i < pieces_.number + 2; ++i) {
      if (i < pieces_.number) sum_on_host(i);
      if (i >= 1 && i - 1 < pieces_.number) sum_over_hosts(i - 1);
      if (i >= 2) tell_host(i - 2);
    }
  }

 private:
  // Element where a share begins: rank `number` of a host sums shares number * hosts + host.
  int64_t cut(int64_t piece, int64_t share) const {
    return pieces_.begin(piece) +
           pieces_.size(piece) * share / (lane_.map().each() * lane_.map().hosts());
  }
  int64_t mine(int64_t host) const { return lane_.local() * lane_.map().hosts() + host; }
  int64_t size_of(int64_t piece, int64_t share) const {
    return cut(piece, share + 1) - cut(piece, share);
  }
  int64_t part_begin(int64_t piece, int64_t number) const {
    return cut(piece, number * lane_.map().hosts());
  }
  // One host alone: the sum of this rank's part grows where it stays. The order of the ranks allows
  // the first two to add the others to their own (a + b = b + a to the bit).
  bool in_place() const { return lane_.map().hosts() == 1 && lane_.local() < 2; }
  char* element(int64_t index) const { return memory_ + bytes_in(index, pieces_.width); }
  Tensor bytes(const Tensor& scratch, int64_t element_at, int64_t count) const {
    return scratch.narrow(0, element_at * pieces_.width, count * pieces_.width);
  }
  // Where the host's sum of a share lies among those of this rank's part.
  int64_t in_part(int64_t piece, int64_t share) const {
    return cut(piece, share) - part_begin(piece, lane_.local());
  }

  void sum_on_host(int64_t i) {
    const int64_t begin = part_begin(i, lane_.local()),
                  count = part_begin(i, lane_.local() + 1) - begin;
    const size_t before = bytes_in(begin - pieces_.begin(i), pieces_.width),
                 until = before + bytes_in(count, pieces_.width);
    const Tensor sums = lane_.scratch(i % 2),
                 others = lane_.map().hosts() > 1 ? lane_.scratch(2 + i % 2) : Tensor();
    char* here = element(pieces_.begin(i));
    lane_.round(
        [&](char* own) {  // its own part nobody asks for
          std::memcpy(own, here, before);
          std::memcpy(own + until, here + until, pieces_.bytes(i) - until);
        },
        [&](int64_t number, const char* told) {
          const bool own = number == lane_.local();
          if (!in_place())
            put_or_add(memory_of(sums), (own ? here : told) + before, count, flat_.scalar_type(),
                       /*put=*/number == 0);
          else if (!own)
            put_or_add(here + before, told + before, count, flat_.scalar_type(), /*put=*/false);
        });
    if (in_place()) return;
    const int64_t own = size_of(i, mine(lane_.host()));
    std::vector<PeerMessage> messages;
    each_other_host(lane_, [&](int64_t host) {
      messages.push_back(come_from(host, bytes(others, host * own, own)));
    });
    each_other_host(lane_, [&](int64_t host) {
      messages.push_back(
          sent_to(host, bytes(sums, in_part(i, mine(host)), size_of(i, mine(host)))));
    });
    sums_coming_[static_cast<size_t>(i % 2)] = lane_.exchange(messages);
  }

  void sum_over_hosts(int64_t i) {
    if (in_place()) return;
    lane_.await(sums_coming_[static_cast<size_t>(i % 2)]);
    const int64_t share = mine(lane_.host()), count = size_of(i, share);
    const char* sums = memory_of(lane_.scratch(i % 2));
    for (int64_t host = 0; host < lane_.map().hosts(); ++host)
      put_or_add(element(cut(i, share)),
                 host == lane_.host()
                     ? sums + bytes_in(in_part(i, share), pieces_.width)
                     : memory_of(lane_.scratch(2 + i % 2)) + bytes_in(host * count, pieces_.width),
                 count, flat_.scalar_type(), /*put=*/host == 0);
    std::vector<PeerMessage> messages;
    each_other_host(lane_, [&](int64_t host) {
      messages.push_back(
          come_from(host, flat_.narrow(0, cut(i, mine(host)), size_of(i, mine(host)))));
    });
    each_other_host(lane_, [&](int64_t host) {
      messages.push_back(sent_to(host, flat_.narrow(0, cut(i, share), count)));
    });
    shares_coming_[static_cast<size_t>(i % 2)] = lane_.exchange(messages);
  }

  void tell_host(int64_t i) {
    lane_.await(shares_coming_[static_cast<size_t>(i % 2)]);
    auto part = [&](int64_t number) {
      return bytes_in(part_begin(i, number + 1) - part_begin(i, number), pieces_.width);
    };
    lane_.round(
        [&](char* own) {
          std::memcpy(own, element(part_begin(i, lane_.local())), part(lane_.local()));
        },
        [&](int64_t number, const char* told) {
          if (number != lane_.local())
            std::memcpy(element(part_begin(i, number)), told, part(number));
        });
  }

  HostLane& lane_;
  Tensor flat_;
  char* memory_;
  EvenPieces pieces_;
  std::array<Transport::FlightPtr, 2> sums_coming_, shares_coming_;
};

}  // namespace

void sum_everywhere(HostLane& lane, const Tensor& tensor) { SumEverywhere(lane, tensor).run(); }

// Pieces come in four turns of memory and go out two at a time: what tells the other rank of room
// for one more goes the way of what is sent, and shall not stand behind all of it.
void sum_with_other(HostLane& lane, const Tensor& tensor) {
  constexpr int64_t kComing = 4, kGoing = 2;
  const int64_t other = 1 - lane.host();
  const Tensor flat = tensor.view({-1});
  const EvenPieces pieces(flat.numel(), static_cast<int64_t>(flat.element_size()), lane.slot());
  std::array<Transport::FlightPtr, kComing> coming;
  std::array<Transport::FlightPtr, kGoing> going;
  auto receive = [&](int64_t i) {
    if (i >= pieces.number) return;
    const auto bytes = static_cast<int64_t>(pieces.bytes(i));
    coming[static_cast<size_t>(i % kComing)] =
        lane.exchange({come_from(other, lane.scratch(i % kComing).narrow(0, 0, bytes))});
  };
  auto send = [&](int64_t i) {
    if (i < pieces.number)
      going[static_cast<size_t>(i % kGoing)] =
          lane.exchange({sent_to(other, flat.narrow(0, pieces.begin(i), pieces.size(i)))});
  };
  for (int64_t i = 0; i < kComing; ++i) receive(i);
  for (int64_t i = 0; i < kGoing; ++i) send(i);
  for (int64_t i = 0; i < pieces.number; ++i) {
    lane.await(coming[static_cast<size_t>(i % kComing)]);
    lane.await(going[static_cast<size_t>(i % kGoing)]);
    put_or_add(memory_of(flat) + pieces.offset(i), memory_of(lane.scratch(i % kComing)),
               pieces.size(i), flat.scalar_type(), /*put=*/false);
    receive(i + kComing);
    send(i + kGoing);
  }
}

// Piece by piece: while one crosses, the next is added up on the host.
void sum_to_shard(HostLane& lane, const Tensor& packed, const Tensor& shard) {
  const int64_t hosts = lane.map().hosts(), each = lane.map().each(), me = lane.local();
  const at::ScalarType type = shard.scalar_type();
  const EvenPieces pieces(shard.numel(), static_cast<int64_t>(shard.element_size()),
                          lane.slot() / (hosts * each));
  const auto* all = static_cast<const char*>(packed.const_data_ptr());
  auto given = [&](int64_t host, int64_t number, int64_t i) {
    return all +
           bytes_in(lane.map().place(host, number) * pieces.count + pieces.begin(i), pieces.width);
  };
  std::array<Transport::FlightPtr, 2> crossing;
  for (int64_t i = 0; i <= pieces.number; ++i) {
    if (i < pieces.number) {
      const size_t part = pieces.bytes(i);
      const Tensor sums = lane.scratch(i % 2), others = lane.scratch(2 + i % 2);
      lane.round(
          [&](char* own) {
            for (int64_t number = 0; number < each; ++number)
              for (int64_t host = 0; host < hosts && number != me; ++host)
                std::memcpy(own + static_cast<size_t>(number * hosts + host) * part,
                            given(host, number, i), part);
          },
          [&](int64_t number, const char* told) {
            for (int64_t host = 0; host < hosts; ++host)
              put_or_add(
                  memory_of(sums) + static_cast<size_t>(host) * part,
                  number == me ? given(host, me, i) : slot_part(told, me * hosts + host, part),
                  pieces.size(i), type, /*put=*/number == 0);
          });
      const auto bytes = static_cast<int64_t>(part);
      std::vector<PeerMessage> messages;
      each_other_host(lane, [&](int64_t host) {
        messages.push_back(come_from(host, others.narrow(0, host * bytes, bytes)));
      });
      each_other_host(lane, [&](int64_t host) {
        messages.push_back(sent_to(host, sums.narrow(0, host * bytes, bytes)));
      });
      crossing[static_cast<size_t>(i % 2)] = lane.exchange(messages);
    }
    if (i == 0) continue;
    const int64_t last = i - 1;
    lane.await(crossing[static_cast<size_t>(last % 2)]);
    const char *sums = memory_of(lane.scratch(last % 2)),
               *others = memory_of(lane.scratch(2 + last % 2));
    for (int64_t host = 0; host < hosts; ++host)
      put_or_add(memory_of(shard) + pieces.offset(last),
                 slot_part(host == lane.host() ? sums : others, host, pieces.bytes(last)),
                 pieces.size(last), type, /*put=*/host == 0);
  }
}

}  // namespace meshwright::detail
