#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

#include "device_moments.h"
#include "meshwright/parallel/group.h"

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

}  // namespace meshwright
