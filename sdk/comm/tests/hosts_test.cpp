// Groups of several hosts, which are one machine here: MESHWRIGHT_HOSTS says who is where.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "faulty_transport.h"
#include "meshwright/error.h"
#include "meshwright/parallel/group.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/transport.h"
#include "sdk/comm/host_lane.h"
#include "sdk/comm/shared_memory.h"
#include "shared_memory_switch.h"

namespace hosts_test {

using namespace meshwright;
using at::Tensor;
using meshwright::detail::HostLane;
using meshwright::detail::HostMap;
using meshwright::testing::PretendedHosts;
using Ranks = std::vector<int64_t>;

namespace {

// Small whole numbers: sums of them are exact in every dtype.
Tensor told_by(int64_t rank, int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).mul_(3).add_(7 * rank).remainder_(13).to(type);
}

Tensor sum_of_all(int64_t ranks, int64_t count, at::ScalarType type) {
  Tensor out = at::zeros({count}, at::kLong);
  for (int64_t r = 0; r < ranks; ++r) out += told_by(r, count, at::kLong);
  return out.to(type);
}

void check_collectives(Group& group, int64_t count, at::ScalarType type) {
  const int64_t n = group.size(), me = group.rank();
  const Tensor mine = told_by(me, count, type);
  // Three at once, waited for in another order.
  Tensor whole = at::full({n * count}, 99, type), sum = mine.clone(),
         packed = told_by(me, n * count, type), part = at::full({count}, 99, type);
  const bool scatters = group.has_native_reduce_scatter();
  Work gathering = group.all_gather(mine, whole), summing = group.all_reduce(sum), scattering;
  if (scatters) scattering = group.reduce_scatter(packed, part);
  scattering.wait();
  gathering.wait();
  summing.wait();
  for (int64_t r = 0; r < n; ++r)
    CHECK((r == me || whole.narrow(0, r * count, count).equal(told_by(r, count, type))));
  CHECK(sum.equal(sum_of_all(n, count, type)));
  if (scatters) CHECK(part.equal(sum_of_all(n, n * count, type).narrow(0, me * count, count)));
  for (int64_t root = 0; root < n; ++root) {
    Tensor told = root == me ? mine.clone() : at::full({count}, 99, type);
    group.broadcast(told, root).wait();
    CHECK(told.equal(told_by(root, count, type)));
  }
}

// What this rank sends by sockets, to ranks of its number on other hosts and in the group's own
// connections, where all that is large counts.
struct Sent {
  int64_t across = 0, flat = 0;
};

class CountingTransport final : public meshwright::testing::ThroughTransport {
 public:
  CountingTransport(std::shared_ptr<Transport> inner, std::shared_ptr<Sent> sent)
      : ThroughTransport(std::move(inner)), sent_(std::move(sent)) {}
  FlightPtr send_receive(std::span<const PeerMessage> messages) override {
    for (const PeerMessage& message : messages)
      if (message.way == PeerMessage::Way::send)
        sent_->across += static_cast<int64_t>(message.tensor.nbytes());
    return inner_->send_receive(messages);
  }

 private:
  FlightPtr pass(size_t bytes, const std::function<FlightPtr()>& start) override {
    sent_->flat += static_cast<int64_t>(bytes);
    return start();
  }
  std::shared_ptr<Sent> sent_;
};

std::shared_ptr<World> counting_world(const std::shared_ptr<World>& world,
                                      const std::shared_ptr<Sent>& sent) {
  return meshwright::testing::world_through(
      world, world->timeout(), [sent](std::shared_ptr<Transport> inner) {
        return std::make_shared<CountingTransport>(std::move(inner), sent);
      });
}

}  // namespace

TEST_CASE("ranks are numbered by host, whatever the order of the group") {
  const HostMap mixed(Ranks{7, 3, 7, 3, 9, 9});
  CHECK(mixed.host == Ranks{0, 1, 0, 1, 2, 2});
  CHECK(mixed.local == Ranks{0, 0, 1, 1, 0, 1});
  CHECK(mixed.place(1, 1) == 3);
  CHECK(mixed.hosts() == 3);
  CHECK(mixed.layered());
  CHECK_FALSE(HostMap(Ranks{5, 5, 5, 5}).layered());  // one host
  CHECK_FALSE(HostMap(Ranks{1, 2, 3, 4}).layered());  // one rank each
  CHECK_FALSE(HostMap(Ranks{1, 1, 1, 2}).layered());  // not alike
  Ranks many;
  for (int64_t r = 0; r < 64; ++r) many.push_back(1 + r / 8);
  CHECK(HostMap(many).layered());
  for (int64_t r = 0; r < 8; ++r) many.push_back(9);
  CHECK_FALSE(HostMap(many).layered());  // too many
}

TEST_CASE("parts of a round are never less than 32 KiB") {
  for (int64_t hosts : {2, 4, 8, 16, 32})
    for (int64_t each : {2, 4, 8, 16}) {
      if (hosts * each > HostMap::kMostRanks) continue;
      CHECK(HostLane::slot_for(hosts * each) / (hosts * each) >= (32 << 10));
      CHECK(HostLane::slot_for(hosts * each) <= (2 << 20));
    }
  CHECK(HostLane::slot_for(16) == (512 << 10));
  CHECK(HostLane::slot_for(32) == (1 << 20));
}

TEST_CASE("more than 16 ranks on hosts share what is large, too") {
  // 32 ranks of one process take more descriptors than the usual soft limit.
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlim_t before = files.rlim_cur;
  files.rlim_cur = std::max(before, std::min<rlim_t>(files.rlim_max, 8192));
  ::setrlimit(RLIMIT_NOFILE, &files);
  // Each has three slots of a sum's size and as many of a gather's: 144 MiB, or less than 64.
  struct statvfs shm{};
  REQUIRE(::statvfs("/dev/shm", &shm) == 0);
  const uint64_t room = uint64_t{shm.f_bavail} * shm.f_frsize;
  REQUIRE_MESSAGE(room >= (uint64_t{64} << 20), "this test needs 64 MiB of /dev/shm");
  const bool many = files.rlim_cur >= 4096 && room >= (uint64_t{200} << 20);
  std::string told;
  const int64_t hosts = many ? 4 : 2, each = many ? 8 : 9;
  for (int64_t r = 0; r < hosts * each; ++r)
    told += (told.empty() ? "" : ",") + std::to_string(r / each);
  CAPTURE(told);
  constexpr int64_t count = 20011;  // for one rank: three pieces of a sum
  const Tensor sum = sum_of_all(hosts * each, hosts * each * count, at::kFloat);
  {
    const PretendedHosts pretended(told.c_str());
    run_ranks(hosts * each, [&](const std::shared_ptr<World>& world) {
      auto group = world->everyone();
      CHECK(group->has_native_reduce_scatter());
      const int64_t n = group->size(), me = group->rank();
      const Tensor mine = told_by(me, count, at::kFloat);
      Tensor whole = at::full({n * count}, 99, at::kFloat),
             part = at::full({count}, 99, at::kFloat);
      group->all_gather(mine, whole).wait();
      for (int64_t r = 0; r < n; ++r)
        CHECK((r == me || whole.narrow(0, r * count, count).equal(told_by(r, count, at::kFloat))));
      const Tensor packed = told_by(me, n * count, at::kFloat);
      group->reduce_scatter(packed, part).wait();
      CHECK(part.equal(sum.narrow(0, me * count, count)));
      Tensor summed = packed.clone();
      group->all_reduce(summed).wait();
      CHECK(summed.equal(sum));
    });
  }
  files.rlim_cur = before;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

TEST_CASE("collectives over hosts bring what those of one host do, for every order of ranks") {
  struct Row {
    const char* hosts;
    int64_t ranks;
  };
  for (const Row& row : {Row{"0,0,1,1", 4}, Row{"0,1,0,1", 4}, Row{"0,1,1,0", 4},
                         Row{"0,0,0,1,1,1", 6}, Row{"0,1,2,2,1,0", 6}}) {
    CAPTURE(row.hosts);
    const PretendedHosts hosts(row.hosts);
    run_ranks(row.ranks, [](const std::shared_ptr<World>& world) {
      auto group = world->everyone();
      CHECK(group->has_native_reduce_scatter());
      CHECK_FALSE(meshwright::detail::maps_gather(*group, 1));
      // Too small, uneven, and of several pieces.
      for (int64_t count : {int64_t{5}, int64_t{2049}, int64_t{150001}})
        for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong})
          check_collectives(*group, count, type);
    });
  }
}

TEST_CASE("a group of hosts that are not alike, or have one rank each, uses sockets alone") {
  struct Row {
    const char* hosts;
    int64_t ranks;
  };
  for (const Row& row : {Row{"0,0,0,1", 4}, Row{"0,1,2,3", 4}, Row{"0,1", 2}}) {
    CAPTURE(row.hosts);
    const PretendedHosts hosts(row.hosts);
    run_ranks(row.ranks, [](const std::shared_ptr<World>& world) {
      auto group = world->everyone();
      CHECK_FALSE(group->has_native_reduce_scatter());
      meshwright::detail::reserve(*group, 4096, 4096, 1);
      CHECK_FALSE(meshwright::detail::maps_gather(*group, 1));
      check_collectives(*group, 2049, at::kFloat);
    });
  }
}

TEST_CASE("each byte enters a host once") {
  struct Row {
    const char* hosts;
    int64_t ranks, number;  // of hosts
  };
  for (const Row& row : {Row{"0,0,1,1", 4, 2}, Row{"0,1,0,1", 4, 2}, Row{"0,0,1,1,2,2", 6, 3}}) {
    CAPTURE(row.hosts);
    const PretendedHosts hosts(row.hosts);
    run_ranks(row.ranks, [&](const std::shared_ptr<World>& world) {
      auto sent = std::make_shared<Sent>();
      auto counting = counting_world(world, sent);
      auto group = counting->everyone();
      const int64_t n = group->size(), others = row.number - 1, each = n / row.number,
                    count = 60000, bytes = count * 4;
      auto expect = [&](int64_t across) {
        CHECK(sent->across == across);
        CHECK(sent->flat == 0);
        *sent = {};
      };
      expect(0);
      const Tensor mine = told_by(group->rank(), count, at::kFloat);
      Tensor whole = at::empty({n * count});
      group->all_gather(mine, whole).wait();
      expect(others * bytes);
      Tensor part = at::empty({count});
      group->reduce_scatter(whole, part).wait();
      expect(others * bytes);
      // Of n * count elements a host's share is 1 / each, and what is least of that for the hosts.
      group->all_reduce(whole).wait();
      expect(2 * (n * bytes / each) * others / row.number);
      group->broadcast(whole, 1).wait();
      expect(group->rank() == 1 ? others * n * bytes : 0);
      world->everyone()->barrier();
    });
  }
}

TEST_CASE("large sums on one host go through shared memory beside what else goes on") {
  for (bool wanted : {true, false}) {
    CAPTURE(wanted);
    const meshwright::testing::SharedMemory shared(wanted);
    for (int64_t ranks : {2, 3, 4})
      run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
        auto sent = std::make_shared<Sent>();
        auto counting = counting_world(world, sent);
        auto group = counting->everyone();
        const int64_t count = 400001, me = group->rank();
        meshwright::detail::expect_large_sums(*group);
        for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
          Tensor first = told_by(me, count, type), second = told_by(me + 1, count, type);
          Work one = group->all_reduce(first), other = group->all_reduce(second);
          group->barrier();
          other.wait();
          one.wait();
          CHECK(first.equal(sum_of_all(ranks, count, type)));
          CHECK(second.equal(sum_of_all(ranks + 1, count, type) - told_by(0, count, type)));
        }
        CHECK(sent->flat == (wanted ? 0 : 2 * count * (4 + 2)));
        world->everyone()->barrier();
      });
  }
}

TEST_CASE("large sums of two ranks over sockets go on by themselves, beside what else goes on") {
  const PretendedHosts hosts("0,1");
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    auto group = world->everyone();
    const int64_t me = group->rank();
    // Of one piece more than there are turns, of many, and one that is no multiple of anything.
    for (int64_t bytes : {int64_t{4} << 20, int64_t{5} << 20, int64_t{17} << 20})
      for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
        const int64_t count = bytes / static_cast<int64_t>(c10::elementSize(type)) + 1;
        Tensor first = told_by(me, count, type), second = told_by(me + 1, count, type),
               little = told_by(me, 100, type), whole = at::full({2 * count}, 99, type);
        const Tensor mine = told_by(me, count, type);
        Work one = group->all_reduce(first), gathering = group->all_gather(mine, whole),
             other = group->all_reduce(second), last = group->all_reduce(little);
        last.wait();
        other.wait();
        gathering.wait();
        one.wait();
        CHECK(first.equal(sum_of_all(2, count, type)));
        CHECK(second.equal(sum_of_all(3, count, type) - told_by(0, count, type)));
        CHECK(little.equal(sum_of_all(2, 100, type)));
        for (int64_t r = 0; r < 2; ++r)
          CHECK((r == me || whole.narrow(0, r * count, count).equal(told_by(r, count, type))));
      }
    group->barrier();
  });
}

TEST_CASE(
    "who waits for a rank of another host that has ended or is silent is told so, and in time") {
  struct Row {
    const char* hosts;
    int64_t ranks, count;  // the last rank goes
    bool gathers, silent;
    Ranks told;
    const char* words;
  };
  for (const Row& row :
       {Row{"0,1",
            2,
            3000000,
            false,
            true,
            {0},
            "rank 0 waited 3 s in vain for all_reduce of 12.0 MB in group world [0, 1]: no word "
            "from rank 1"},
        Row{"0,1",
            2,
            3000000,
            false,
            false,
            {0},
            "all_reduce of 12.0 MB in group world [0, 1] failed"},
        Row{"0,0,1,1",
            4,
            5000,
            false,
            true,
            {2},
            "rank 2 waited 3 s in vain for all_reduce of 20.0 kB in group world [0, 1, 2, 3]: no "
            "word from rank 3"},
        // Its partner hears of the end of the connection, its neighbour of that in shared memory,
        // or of others that ended for this.
        Row{"0,0,1,1",
            4,
            5000,
            true,
            false,
            {1, 2},
            "all_gather of 80.0 kB in group world [0, 1, 2, 3] failed"}}) {
    CAPTURE(row.words);
    const PretendedHosts hosts(row.hosts);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::string> told(static_cast<size_t>(row.ranks));
    auto body = [&](const std::shared_ptr<World>& world) {
      auto group = world->everyone();
      Tensor mine = at::full({row.count}, 1.0), whole = at::empty({row.ranks * row.count});
      auto collective = [&] {
        (row.gathers ? group->all_gather(mine, whole) : group->all_reduce(mine)).wait();
      };
      collective();
      if (world->rank() == row.ranks - 1) {
        if (!row.silent) throw std::runtime_error("ends");
        std::this_thread::sleep_for(std::chrono::milliseconds(6000));
        return;
      }
      try {
        collective();
      } catch (const Error& error) {
        told[static_cast<size_t>(world->rank())] = error.what();
        throw;
      }
    };
    CHECK_THROWS(run_ranks(row.ranks, body, std::chrono::milliseconds(row.silent ? 3000 : 60000)));
    for (int64_t rank : row.told)
      CHECK(told[static_cast<size_t>(rank)].find(row.words) != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  }
}

TEST_CASE("sums on one host are those of the ranks in their order, to the bit") {
  const auto told = [](int64_t rank) {
    return at::arange(400001, at::kFloat).mul_(0.37F * static_cast<float>(rank * rank + 1));
  };
  for (int64_t ranks : {2, 3, 4})
    run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
      auto group = world->everyone();
      meshwright::detail::expect_large_sums(*group);
      Tensor sum = told(group->rank()), wanted = told(0);
      for (int64_t r = 1; r < ranks; ++r) wanted.add_(told(r));
      group->all_reduce(sum).wait();
      CHECK(sum.equal(wanted));
      world->everyone()->barrier();
    });
}

TEST_CASE("sums over hosts are the same to the bit on all ranks and in every run") {
  const PretendedHosts hosts("0,0,1,1");
  std::vector<Tensor> sums(8);
  for (size_t turn = 0; turn < 2; ++turn)
    run_ranks(4, [&](const std::shared_ptr<World>& world) {
      auto group = world->everyone();
      Tensor sum =
          at::arange(70001, at::kFloat).mul_(0.37F * static_cast<float>(world->rank() + 1));
      sum.sin_();
      group->all_reduce(sum).wait();
      sums[turn * 4 + static_cast<size_t>(world->rank())] = sum;
    });
  for (const Tensor& sum : sums) CHECK(sum.equal(sums[0]));
}

// Rank 0 alone enters them and ends, which must not take the timeout.
void check_given_up(const char* of_host, int ranks, const std::function<void(Group&)>& enter) {
  const PretendedHosts hosts(of_host);
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    auto group = world->everyone();
    if (world->rank() == 0) enter(*group);
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("a large sum that the other rank does not enter is given up with its group") {
  check_given_up("0,1", 2, [](Group& group) {
    Tensor sum = at::full({3000000}, 1.0);
    const Work summing = group.all_reduce(sum);
  });
}

TEST_CASE("a collective that nobody else enters is given up with its group") {
  check_given_up("0,0,1,1", 4, [](Group& group) {
    const Tensor mine = at::full({5000}, 1.0);
    Tensor whole = at::empty({20000}), sum = at::full({5000}, 1.0);
    const Work gathering = group.all_gather(mine, whole), summing = group.all_reduce(sum);
  });
}

}  // namespace hosts_test
