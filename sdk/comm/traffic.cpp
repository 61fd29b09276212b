#include <chrono>
#include <mutex>

#include "meshwright/parallel/group.h"

namespace meshwright {

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

struct Trace::Shared {
  std::mutex mutex;
  std::vector<Span> spans;
};

Trace::Trace() : shared_(std::make_shared<Shared>()) {}

int64_t Trace::now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Trace::span(Lane lane, std::string name, int64_t begin, int64_t end) {
  if (!enabled) return;
  std::lock_guard lock(shared_->mutex);
  shared_->spans.push_back({lane, std::move(name), begin, end});
}

std::string Trace::json(int64_t rank) const {
  constexpr const char* names[] = {"compute", "gather", "reduce", "waits, norms and losses"};
  std::lock_guard lock(shared_->mutex);
  std::string pid = std::to_string(rank), out = "[";
  for (int lane = 0; lane < 4; ++lane)
    out += std::string(lane ? ",\n" : "") + R"({"ph":"M","name":"thread_name","pid":)" + pid +
           R"(,"tid":)" + std::to_string(lane) + R"(,"args":{"name":")" + names[lane] + "\"}}";
  for (const Span& s : shared_->spans)
    out += ",\n{\"ph\":\"X\",\"pid\":" + pid +
           ",\"tid\":" + std::to_string(static_cast<int>(s.lane)) + ",\"name\":\"" + s.name +
           "\",\"ts\":" + std::to_string(s.begin) + ",\"dur\":" + std::to_string(s.end - s.begin) +
           "}";
  return out + "]\n";
}

}  // namespace meshwright
