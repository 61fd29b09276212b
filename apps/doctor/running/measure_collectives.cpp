#include "apps/doctor/running/measure_collectives.h"

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

#include "engine/train/step/largest_of_ranks.h"
#include "meshwright/parallel/collectives.h"
#include "sdk/base/mailboxes.h"
#include "sdk/base/maps_gather.h"
#include "sdk/base/read_by_host.h"

namespace meshwright::doctor {

namespace {

using at::Tensor;
using Steady = std::chrono::steady_clock;

// Floats of a rank's message: of 4 KiB, to see how fast the link is, and the first of the larger.
constexpr int64_t kSmall = 1024, kFirst = int64_t{32} << 10;
constexpr int kTimes = 4;
// Floats at most of a message that is sent as pipelines do: its mailbox stays in the memory that
// ranks share.
constexpr int64_t kMostSent = int64_t{1} << 20;
constexpr int64_t kSlots = 2;  // messages ahead of their receiver

// One of the five. `count`: floats of what a rank has whole.
struct Operation {
  const char* name;
  // Bytes that each of n ranks has to send at least for so many.
  int64_t (*least)(int64_t bytes, int64_t n);
  // Bytes that shared memory needs room for; 0: it always takes sockets.
  int64_t (*room)(int64_t bytes, int64_t n);
  Tensor (*call)(const Tensor& x, const GroupPtr& group);
};

int64_t next_in(const Group& group) { return (group.rank() + 1) % group.size(); }
int64_t before_in(const Group& group) { return (group.rank() + group.size() - 1) % group.size(); }

// Room for messages of up to so many bytes to the next rank, as pipelines make it.
void open_mailboxes(const GroupPtr& group, int64_t bytes) {
  std::vector<detail::MailboxNeed> needs = {{next_in(*group), bytes, kSlots}};
  if (const int64_t before = before_in(*group); before != needs[0].peer)
    needs.push_back({before, bytes, kSlots});
  detail::open_mailboxes(*group, std::move(needs));
}

bool maps_messages(const Group& group, int64_t bytes) {
  return detail::maps_message(group, next_in(group), bytes) &&
         detail::maps_message(group, before_in(group), bytes);
}

Tensor to_next(const Tensor& x, const GroupPtr& group) {
  const PeerMessage there{PeerMessage::Way::send, next_in(*group), x};
  if (maps_messages(*group, static_cast<int64_t>(x.nbytes()))) {
    // Read where it lies, as a stage of a pipeline does.
    Work coming = detail::receive_in_place(*group, before_in(*group), x.numel(), x.scalar_type());
    const std::array<PeerMessage, 1> message = {there};
    group->send_receive(message).wait();
    coming.wait();
    return x;
  }
  Tensor out = at::empty_like(x);
  const std::array<PeerMessage, 2> both = {
      there, PeerMessage{PeerMessage::Way::receive, before_in(*group), out}};
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

double sum_of_all(World& world, double mine) {
  const Tensor out = at::tensor({mine}, at::kDouble).to(world.device());
  const GroupPtr everyone = world.everyone();
  everyone->all_reduce(out, ReduceOp::sum, /*control=*/true).wait();
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
    const bool piped = limits_.as_pipelines && operation.call == to_next;
    auto make_room = [&](int64_t count) {
      if (piped) open_mailboxes(group_, count * 4);
    };
    make_room(rounded(kSmall));
    run(operation, rounded(kSmall), 1);  // makes room, and connections
    Collective out;
    out.op = operation.name;
    out.ranks = n;
    out.latency = run(operation, rounded(kSmall), kTimes);
    make_room(rounded(kFirst));
    const double first = largest(world_, run(operation, rounded(kFirst), 1));
    const auto most = static_cast<int64_t>(limits_.seconds / std::max(first, 1e-6) * kFirst);
    const int64_t largest_count =
        piped && world_.device().is_cpu() ? std::min(limits_.floats, kMostSent) : limits_.floats;
    const int64_t count = rounded(std::clamp(most, kFirst, largest_count));
    make_room(count);
    // The first one of a size makes room for it, which runs do once.
    const double once = largest(world_, run(operation, count, 1));
    const int times =
        std::clamp(static_cast<int>(limits_.seconds / std::max(once, 1e-6)), 1, kTimes);
    out.bytes = operation.least(count * 4, n);
    out.seconds = run(operation, count, times);
    const int64_t room = operation.room(count * 4, n);
    const bool native = group_->has_native_reduce_scatter();
    out.over = native && !world_.device().is_cpu() ? "NCCL"
               : native && room > 0                ? "both"
               : (room > 0 && detail::maps_gather(*group_, room)) ||
                       (piped && maps_messages(*group_, count * 4))
                   ? "shared memory"
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
      return sum_of_all(world_, processor_seconds() - spent) / static_cast<double>(world_.size()) *
             limits_.ranks_a_core / times;
    return std::chrono::duration<double>(Steady::now() - begin).count() / times;
  }
  World& world_;
  GroupPtr group_;
  MessageLimits limits_;
};

}  // namespace

double largest(World& world, double mine) { return train::largest_of_ranks(world, {mine})[0]; }

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
      if (limits.as_pipelines && operation.call == exchange_rows) continue;
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
