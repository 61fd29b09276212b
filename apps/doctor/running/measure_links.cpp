#include "apps/doctor/running/measure_links.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "sdk/base/read_by_host.h"

namespace meshwright::doctor {

namespace {

using at::Tensor;
using Steady = std::chrono::steady_clock;

constexpr int kPings = 16;
// Of one direction of one pair: as much as travels in a moment, at least one piece; the best of a
// few times, for whatever else the hosts do only takes away.
constexpr double kLinkMoment = 0.04;
constexpr int kPushes = 3;
constexpr int64_t kPiece = int64_t{256} << 10, kMostPieces = 256;

double seconds_since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}
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
    const double way = seconds_since(begin) / 2;
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
    return seconds_since(begin);
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
