#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "meshwright/parallel/group.h"
#include "meshwright/parallel/testing.h"

namespace meshwright::detail {

// When the streams of a device come to what a trace has marked there: events, read when they are
// over, so that the host waits for none. Not thread-safe.
class DeviceMoments {
 public:
  explicit DeviceMoments(c10::Device device) : device_(device) {}
  // Of the thread's current stream; `now`: microseconds of the host's clock. -1, -2, ...
  int64_t mark(int64_t now);
  // By the host's clock. Waits for all that were marked.
  int64_t time_of(int64_t moment);

 private:
  struct Pending {
    c10::Event event;
    int64_t marked;
  };
  void read_over();
  c10::Device device_;
  std::deque<Pending> pending_;
  std::vector<int64_t> times_;  // of the first ones
  std::optional<c10::Event> base_;
  double base_time_ = 0;  // by the host's clock, as far as is known
};

namespace {
constexpr size_t kKept = 256;  // events that nobody asks for yet: those of some layers
}

int64_t DeviceMoments::mark(int64_t now) {
  c10::impl::VirtualGuardImpl guard(device_.type());
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(guard.getStream(device_));
  pending_.push_back({std::move(event), now});
  if (pending_.size() > kKept) read_over();
  return -static_cast<int64_t>(times_.size() + pending_.size());
}

int64_t DeviceMoments::time_of(int64_t moment) {
  if (!pending_.empty()) {
    for (const Pending& one : pending_) one.event.synchronize();
    read_over();
  }
  return times_.at(static_cast<size_t>(-moment - 1));
}

// The two clocks meet where a stream had nothing else to do: no event comes before the host has
// marked it, and the latest base that this allows is the true one.
void DeviceMoments::read_over() {
  size_t over = 0;
  while (over < pending_.size() && pending_[over].event.query()) ++over;
  if (over == 0) return;
  std::vector<double> after_base(over, 0.0);
  for (size_t i = 0; i < over; ++i)
    if (base_) after_base[i] = base_->elapsedTime(pending_[i].event) * 1000;
  if (!base_)
    for (size_t i = 1; i < over; ++i)
      after_base[i] = pending_[0].event.elapsedTime(pending_[i].event) * 1000;
  for (size_t i = 0; i < over; ++i)
    base_time_ = std::max(base_time_, static_cast<double>(pending_[i].marked) - after_base[i]);
  for (double after : after_base) times_.push_back(static_cast<int64_t>(base_time_ + after));
  base_time_ += after_base[over - 1];  // events tell short times best
  base_.emplace(std::move(pending_[over - 1].event));
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(over));
}

}  // namespace meshwright::detail

namespace meshwright {

struct Trace::Shared {
  std::mutex mutex;
  std::vector<Span> spans;
  std::optional<detail::DeviceMoments> device;
  int64_t time_of(int64_t moment) {
    return moment < 0 && device ? device->time_of(moment) : moment;
  }
};

Trace::Trace(at::Device device) : shared_(std::make_shared<Shared>()) {
  if (!device.is_cpu()) shared_->device.emplace(device);
}

int64_t Trace::now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Trace::mark() {
  if (!shared_->device) return now();
  std::lock_guard lock(shared_->mutex);
  try {
    return shared_->device->mark(now());
  } catch (const std::exception&) {  // of a device that failed, whose error is on its way already
    return now();
  }
}

void Trace::span(Lane lane, std::string name, int64_t begin, int64_t end, int64_t also_begins) {
  if (!enabled) return;
  std::lock_guard lock(shared_->mutex);
  shared_->spans.push_back({lane, std::move(name), begin, end, also_begins});
}

std::string Trace::json(int64_t rank) const {
  constexpr const char* names[] = {"compute", "gather", "reduce", "waits, norms and losses"};
  std::lock_guard lock(shared_->mutex);
  std::string pid = std::to_string(rank), out = "[";
  for (int lane = 0; lane < 4; ++lane)
    out += std::string(lane ? ",\n" : "") + R"({"ph":"M","name":"thread_name","pid":)" + pid +
           R"(,"tid":)" + std::to_string(lane) + R"(,"args":{"name":")" + names[lane] + "\"}}";
  for (const Span& s : shared_->spans) {
    const int64_t begin = std::max(shared_->time_of(s.begin), shared_->time_of(s.also_begins)),
                  end = std::max(begin, shared_->time_of(s.end));
    out += ",\n{\"ph\":\"X\",\"pid\":" + pid +
           ",\"tid\":" + std::to_string(static_cast<int>(s.lane)) + ",\"name\":\"" + s.name +
           "\",\"ts\":" + std::to_string(begin) + ",\"dur\":" + std::to_string(end - begin) + "}";
  }
  return out + "]\n";
}

void TrafficCounter::add(const std::string& axis, const char* op, int64_t bytes) {
  if (recording) order_.push_back({axis, op, 1, bytes});
  for (Row& row : rows_)
    if (row.axis == axis && row.op == op) {
      ++row.count;
      row.bytes += bytes;
      return;
    }
  rows_.push_back({axis, op, 1, bytes});
}

void TrafficCounter::clear() {
  rows_.clear();
  order_.clear();
}

int64_t TrafficCounter::bytes() const {
  int64_t sum = 0;
  for (const Row& row : rows_) sum += row.bytes;
  return sum;
}

}  // namespace meshwright
