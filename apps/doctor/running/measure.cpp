#include "apps/doctor/running/measure.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "engine/train/step/rank_agreement.h"
#include "meshwright/parallel/collectives.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/mailboxes.h"
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

namespace {

constexpr int kPings = 16;
// Of one direction of one pair: as much as travels in a moment, at least one piece; the best of a
// few times, for whatever else the hosts do only takes away.
constexpr double kLinkMoment = 0.04;
constexpr int kPushes = 3;
constexpr int64_t kPiece = int64_t{256} << 10, kMostPieces = 256;

// Of the clock that hosts are set to. As whole nanoseconds, so that nothing is rounded.
int64_t wall_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The two ends of a pair.
class Pair {
 public:
  Pair(World& world, int64_t peer) : world_(world), group_(*world.everyone()), peer_(peer) {}

  void send(const Tensor& tensor) { move(PeerMessage::Way::send, tensor); }
  void receive(const Tensor& tensor) { move(PeerMessage::Way::receive, tensor); }
  void send_number(int64_t value) { send(at::tensor({value}, at::kLong).to(world_.device())); }
  int64_t receive_number() {
    const Tensor out = at::zeros({1}, at::TensorOptions(at::kLong).device(world_.device()));
    receive(out);
    return detail::read_by_host(group_, out).item<int64_t>();
  }
  Tensor piece() const {
    return at::zeros({kPiece}, at::TensorOptions(at::kByte).device(world_.device()));
  }

 private:
  void move(PeerMessage::Way way, const Tensor& tensor) {
    const PeerMessage message{way, peer_, tensor};
    group_.send_receive({&message, 1}).wait();
    world_.check();
  }
  World& world_;
  Group& group_;
  int64_t peer_;
};

// The shortest way there and back says most of latency, and of the clocks' difference: whatever
// else it was, the answer was written between the two.
struct Pinged {
  double latency = std::numeric_limits<double>::max(), ahead = 0, error = 0;
};
Pinged ping(Pair& pair) {
  Pinged out;
  for (int i = 0; i < kPings; ++i) {
    const int64_t sent = wall_clock();
    const Steady::time_point begin = Steady::now();
    pair.send_number(sent);
    const int64_t theirs = pair.receive_number();
    const double way = base::ms_since(begin) / 1000 / 2;
    if (way >= out.latency) continue;
    out = {way, static_cast<double>(theirs - sent) * 1e-9 - way, way};
  }
  return out;
}
void answer(Pair& pair) {
  for (int i = 0; i < kPings; ++i) {
    pair.receive_number();
    pair.send_number(wall_clock());
  }
}

// Bytes a second from here to the peer, who says when all is there.
double push(Pair& pair) {
  const Tensor piece = pair.piece();
  auto pieces = [&](int64_t count) {
    const Steady::time_point begin = Steady::now();
    for (int64_t i = 0; i < count; ++i) pair.send(piece);
    pair.receive_number();
    return base::ms_since(begin) / 1000;
  };
  const double one = pieces(1);
  const auto count =
      std::clamp(static_cast<int64_t>(kLinkMoment / std::max(one, 1e-6)), int64_t{1}, kMostPieces);
  pair.send_number(count);
  double rate = 0;
  for (int i = 0; i < kPushes; ++i)
    rate = std::max(rate, static_cast<double>(count * kPiece) / pieces(count));
  return rate;
}
void pull(Pair& pair) {
  const Tensor piece = pair.piece();
  pair.receive(piece);
  pair.send_number(1);
  const int64_t count = std::clamp(pair.receive_number(), int64_t{1}, kMostPieces);
  for (int i = 0; i < kPushes; ++i) {
    for (int64_t k = 0; k < count; ++k) pair.receive(piece);
    pair.send_number(1);
  }
}

}  // namespace

std::vector<Link> measure_links(World& world, const std::vector<int64_t>& members,
                                const std::function<bool()>& over) {
  std::vector<Link> out;
  for (const auto& round : rounds_of(std::ssize(members))) {
    for (const auto& [a, b] : round) {
      const int64_t from = members[static_cast<size_t>(a)], to = members[static_cast<size_t>(b)];
      if (world.rank() == from) {
        Pair pair(world, to);
        Link link{.from = from, .to = to};
        const Pinged pinged = ping(pair);
        link.latency = pinged.latency;
        link.ahead = pinged.ahead;
        link.error = pinged.error;
        link.at = static_cast<double>(wall_clock()) * 1e-9;
        link.there = push(pair);
        pull(pair);
        link.back = static_cast<double>(pair.receive_number());
        out.push_back(link);
      } else if (world.rank() == to) {
        Pair pair(world, from);
        answer(pair);
        pull(pair);
        const double rate = push(pair);
        pair.send_number(static_cast<int64_t>(rate));
      }
    }
    if (over()) break;
  }
  return out;
}

void measure_clocks_again(World& world, std::vector<Link>& links,
                          const std::vector<int64_t>& members) {
  for (size_t i = 1; i < members.size(); ++i) {
    if (world.rank() == members[0]) {
      Pair pair(world, members[i]);
      const Pinged pinged = ping(pair);
      for (Link& link : links)
        if (link.from == members[0] && link.to == members[i]) {
          link.later_ahead = pinged.ahead;
          link.later_error = pinged.error;
          link.later_at = static_cast<double>(wall_clock()) * 1e-9;
        }
    } else if (world.rank() == members[i]) {
      Pair pair(world, members[0]);
      answer(pair);
    }
  }
}

}  // namespace meshwright::doctor
