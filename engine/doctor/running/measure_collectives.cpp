#include "engine/doctor/running/measure_collectives.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <memory>
#include <utility>

#include "meshwright/parallel/collectives.h"
#include "sdk/base/maps_gather.h"
#include "sdk/base/read_by_host.h"

namespace meshwright::doctor {

namespace {

using at::Tensor;
using Steady = std::chrono::steady_clock;

// Floats of a rank's message: of 4 KiB, to see how fast the link is, and the first of the larger.
constexpr int64_t kSmall = 1024, kFirst = int64_t{32} << 10;
constexpr int kTimes = 4;

// One of the five. `count`: floats of what a rank has whole.
struct Operation {
  const char* name;
  // Bytes that each of n ranks has to send at least for so many.
  int64_t (*least)(int64_t bytes, int64_t n);
  // Bytes that shared memory needs room for; 0: it always takes sockets.
  int64_t (*room)(int64_t bytes, int64_t n);
  Tensor (*call)(const Tensor& x, const GroupPtr& group);
};

Tensor to_next(const Tensor& x, const GroupPtr& group) {
  const int64_t n = group->size(), me = group->rank();
  Tensor out = at::empty_like(x);
  const std::array<PeerMessage, 2> both = {
      PeerMessage{PeerMessage::Way::send, (me + 1) % n, x},
      PeerMessage{PeerMessage::Way::receive, (me + n - 1) % n, out}};
  group->send_receive(both).wait();
  return out;
}

Tensor exchange_rows(const Tensor& x, const GroupPtr& group) {
  const auto n = static_cast<size_t>(group->size());
  const std::vector<int64_t> rows(n, x.numel() / group->size());
  return all_to_all(x.view({-1, 1}), rows, rows, group);
}

int64_t others(int64_t bytes, int64_t n) { return bytes / n * (n - 1); }
int64_t whole(int64_t bytes, int64_t /*n*/) { return bytes; }
int64_t none(int64_t /*bytes*/, int64_t /*n*/) { return 0; }

constexpr Operation kOperations[] = {
    {"all_gather", others, [](int64_t bytes, int64_t n) { return bytes / n; },
     [](const Tensor& x, const GroupPtr& group) {
       return all_gather(x.narrow(0, 0, x.numel() / group->size()), 0, group);
     }},
    {"reduce_scatter", others, others,
     [](const Tensor& x, const GroupPtr& group) { return reduce_scatter(x, 0, group); }},
    {"all_reduce", [](int64_t bytes, int64_t n) { return 2 * others(bytes, n); }, whole,
     [](const Tensor& x, const GroupPtr& group) { return all_reduce(x, group); }},
    {"all_to_all", others, none, exchange_rows},
    {"send/recv", whole, none, to_next},
};

double of_all(World& world, double mine, ReduceOp op) {
  const Tensor out = at::tensor({mine}, at::kDouble).to(world.device());
  const GroupPtr everyone = world.everyone();
  everyone->all_reduce(out, op, /*control=*/true).wait();
  return detail::read_by_host(*everyone, out).item<double>();
}

// Of all threads of this process.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Meter {
 public:
  Meter(World& world, GroupPtr group, const MessageLimits& limits)
      : world_(world), group_(std::move(group)), limits_(limits) {}

  Collective of(const Operation& operation) {
    const int64_t n = group_->size();
    auto rounded = [&](int64_t count) { return std::max<int64_t>(1, count / n) * n; };
    detail::expect_large_sums(*group_);
    run(operation, rounded(kSmall), 1);  // makes room, and connections
    Collective out;
    out.op = operation.name;
    out.ranks = n;
    out.latency = run(operation, rounded(kSmall), kTimes);
    const double first = largest(world_, run(operation, rounded(kFirst), 1));
    const auto most = static_cast<int64_t>(limits_.seconds / std::max(first, 1e-6) * kFirst);
    const int64_t count = rounded(std::clamp(most, kFirst, limits_.floats));
    // The first one of a size makes room for it, which runs do once.
    const double once = largest(world_, run(operation, count, 1));
    const int times =
        std::clamp(static_cast<int>(limits_.seconds / std::max(once, 1e-6)), 1, kTimes);
    out.bytes = operation.least(count * 4, n);
    out.seconds = run(operation, count, times);
    const int64_t room = operation.room(count * 4, n);
    const bool native = group_->has_native_reduce_scatter();
    out.over = native && !world_.device().is_cpu()              ? "NCCL"
               : native && room > 0                             ? "both"
               : room > 0 && detail::maps_gather(*group_, room) ? "shared memory"
                                                                : "sockets";
    return out;
  }

 private:
  // Seconds of one.
  double run(const Operation& operation, int64_t count, int times) {
    const c10::NoGradGuard no_grad;
    const Tensor x = at::zeros({count}, at::TensorOptions(at::kFloat).device(world_.device()));
    largest(world_, 0);  // all begin together
    const Steady::time_point begin = Steady::now();
    const double spent = processor_seconds();
    Tensor last;
    for (int i = 0; i < times; ++i) last = operation.call(x, group_);
    if (!last.is_cpu()) last.view({-1}).narrow(0, 0, 1).cpu();  // the device has done all
    world_.check();
    if (limits_.ranks_a_core > 0)
      return of_all(world_, processor_seconds() - spent, ReduceOp::sum) /
             static_cast<double>(world_.size()) * limits_.ranks_a_core / times;
    return std::chrono::duration<double>(Steady::now() - begin).count() / times;
  }
  World& world_;
  GroupPtr group_;
  MessageLimits limits_;
};

}  // namespace

double largest(World& world, double mine) { return of_all(world, mine, ReduceOp::max); }

std::vector<AxisGroup> axes_to_measure(const plan::JobPlan& plan) {
  std::vector<AxisGroup> out;
  for (const plan::AxisView& axis : plan::axes_of(plan)) {
    if (axis.group.size() < 2) continue;
    auto same = std::find_if(out.begin(), out.end(),
                             [&](const AxisGroup& g) { return g.ranks == axis.group; });
    if (same == out.end())
      out.push_back({axis.name, axis.group});
    else
      same->names += " = " + axis.name;
  }
  return out;
}

std::vector<Collective> measure_collectives(World& world, const std::vector<AxisGroup>& axes,
                                            const std::function<bool()>& over,
                                            const MessageLimits& limits) {
  std::vector<Collective> out;
  for (const AxisGroup& axis : axes) {
    const GroupPtr group = world.group(axis.names, axis.ranks);
    Meter meter(world, group, limits);
    for (const Operation& operation : kOperations) {
      Collective found = meter.of(operation);
      found.axis = axis.names;
      found.slowest = axis.ranks;
      out.push_back(std::move(found));
      if (over()) return out;
    }
  }
  return out;
}

}  // namespace meshwright::doctor
