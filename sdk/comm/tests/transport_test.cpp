// Messages from rank to rank, and transports of one's own.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "faulty_transport.h"
#include "meshwright/error.h"
#include "meshwright/parallel/group.h"
#include "meshwright/parallel/testing.h"
#include "sdk/base/transport.h"
#include "sdk/comm/parts.h"
#include "sdk/comm/shared_memory.h"
#include "shared_memory_switch.h"

namespace transport_test {

using namespace meshwright;
using at::Tensor;
using meshwright::testing::faulty_world;
using meshwright::testing::SharedMemory;

namespace {

PeerMessage send(int64_t peer, const Tensor& tensor) {
  return {PeerMessage::Way::send, peer, tensor};
}
PeerMessage receive(int64_t peer, const Tensor& tensor) {
  return {PeerMessage::Way::receive, peer, tensor};
}

// Each rank has something for the next one and for the one before, of other sizes and dtypes; twice
// under way at once.
void pass_round(Group& group, int64_t rounds) {
  int64_t n = group.size(), me = group.rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<Tensor> keep;
    std::vector<Work> works;
    for (int64_t turn = 0; turn < 2; ++turn) {
      auto value = [&](int64_t rank, int64_t way) {
        return static_cast<double>(1000 * round + 100 * turn + 10 * rank + way);
      };
      Tensor forth = at::full({3 + turn}, value(me, 1)),
             back = at::full({5, 2}, value(me, 2), at::kDouble);
      Tensor from_before = at::empty({3 + turn}), from_next = at::empty({5, 2}, at::kDouble);
      std::vector<PeerMessage> messages{receive(before, from_before), send(next, forth),
                                        send(before, back), receive(next, from_next)};
      works.push_back(group.send_receive(messages));
      for (const Tensor& t : {from_before, at::full({3 + turn}, value(before, 1)), from_next,
                              at::full({5, 2}, value(next, 2), at::kDouble), forth, back})
        keep.push_back(t);
    }
    for (size_t turn = works.size(); turn-- > 0;) works[turn].wait();  // in any order
    for (size_t i = 0; i < keep.size(); i += 6) {
      CHECK(keep[i].equal(keep[i + 1]));
      CHECK(keep[i + 2].equal(keep[i + 3]));
    }
  }
}

}  // namespace

TEST_CASE(
    "memory that ranks share has no name while it is made: SIGKILL at any moment leaves none") {
  auto named = [] {
    int64_t out = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      out += entry.path().filename().string().starts_with("meshwright") ? 1 : 0;
    return out;
  };
  run_ranks(3, [&](const std::shared_ptr<World>& world) {
    auto group = world->everyone();
    meshwright::detail::SharedMemoryRing::Sizes sizes;
    sizes.slot[0] = sizes.slot[1] = 4096;
    const auto ring = meshwright::detail::make_ring(group->rank(), group->size(), sizes,
                                                    [&](const Tensor& tensor) {
                                                      CHECK(named() == 0);
                                                      group->all_reduce(tensor).wait();
                                                    });
    CHECK(ring != nullptr);
  });
}

TEST_CASE(
    "messages go both ways between all neighbours at once, and are counted by the bytes that leave "
    "a rank") {
  for (int64_t ranks : {2, 3, 4})
    run_ranks(ranks, [](const std::shared_ptr<World>& world) {
      auto group = world->everyone();
      world->traffic().clear();
      pass_round(*group, 3);
      REQUIRE(world->traffic().rows().size() == 1);
      const TrafficCounter::Row& row = world->traffic().rows()[0];
      CHECK(row.axis == "world");
      CHECK(row.op == "send");
      CHECK(row.count == 12);
      CHECK(row.bytes == 3 * ((3 + 4) * 4 + 2 * 10 * 8));
    });
}

TEST_CASE(
    "ranks without messages take no part, and collectives and messages of one group do not meet") {
  run_ranks(4, [](const std::shared_ptr<World>& world) {
    auto group = world->everyone();
    int64_t me = world->rank();
    for (int turn = 0; turn < 5; ++turn) {
      Tensor first = at::arange(4).to(at::kFloat) + turn, second = first * 10, a = at::empty({4}),
             b = at::empty({4});
      Work work;
      if (me == 1)
        work = group->send_receive(std::vector<PeerMessage>{send(3, first), send(3, second)});
      if (me == 3)
        work = group->send_receive(std::vector<PeerMessage>{receive(1, a), receive(1, b)});
      Tensor whole = at::empty({16}), mine = at::full({4}, static_cast<double>(me));
      group->all_gather(mine, whole).wait();  // while they are under way
      for (int64_t r = 0; r < 4; ++r)
        CHECK((r == me || whole.narrow(0, 4 * r, 4).eq(static_cast<double>(r)).all().item<bool>()));
      work.wait();
      if (me == 3) {
        CHECK(a.equal(first));
        CHECK(b.equal(second));
      }
    }
  });
}

TEST_CASE("a message for oneself or for nobody is refused") {
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    auto group = world->everyone();
    for (int64_t peer : {world->rank(), int64_t{-1}, int64_t{2}})
      CHECK_THROWS_AS(group->send_receive(std::vector<PeerMessage>{send(peer, at::full({1}, 1.0))}),
                      Error);
    CHECK_FALSE(static_cast<bool>(group->send_receive({})));
  });
}

TEST_CASE("delays and another order change no value") {
  for (uint64_t seed = 1; seed <= 5; ++seed)
    run_ranks(3, [&](const std::shared_ptr<World>& world) {
      auto slow = faulty_world(world, {.seed = seed * 10, .max_delay_us = 3000, .reorder = true},
                               std::chrono::seconds(60));
      auto group = slow->everyone();
      pass_round(*group, 3);
      Tensor sum = at::full({7}, static_cast<double>(world->rank() + 1));
      group->all_reduce(sum).wait();
      CHECK(sum.eq(6.0).all().item<bool>());
    });
}

TEST_CASE(
    "a lost message ends in an error that names rank, group, operation and who was waited for") {
  std::string told;
  auto body = [&](const std::shared_ptr<World>& world) {
    auto lossy =
        faulty_world(world, {.lose = world->rank() == 1 ? 0 : -1}, std::chrono::milliseconds(2000));
    auto group = lossy->everyone();
    Tensor out = at::full({4}, 1.0), in = at::empty({4});
    if (world->rank() == 1) group->send_receive(std::vector<PeerMessage>{send(2, out)}).wait();
    if (world->rank() != 2) return;
    try {
      group->send_receive(std::vector<PeerMessage>{receive(1, in)}).wait();
    } catch (const Error& error) {
      told = error.what();
    }
  };
  // What timed out has broken the connections, so that the ranks cannot part in good order.
  CHECK_THROWS_AS(run_ranks(3, body, std::chrono::milliseconds(5000)), Error);
  CHECK(told.find("rank 2 waited 2 s in vain for send_receive of 16 bytes in group world [0, 1, "
                  "2]: no word from rank 1") != std::string::npos);
}

TEST_CASE("messages between ranks of one host cross in mailboxes, which change nothing else") {
  for (int64_t ranks : {2, 3, 4})
    for (bool wanted : {true, false}) {
      const SharedMemory shared(wanted);
      CAPTURE(ranks);
      CAPTURE(wanted);
      run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
        auto group = world->everyone();
        const int64_t n = group->size(), me = group->rank();
        auto open = [&](int64_t bytes, int64_t slots) {
          std::vector<meshwright::detail::MailboxNeed> needs;
          for (int64_t peer : {(me + 1) % n, (me + n - 1) % n})
            if (needs.empty() || needs[0].peer != peer) needs.push_back({peer, bytes, slots});
          meshwright::detail::open_mailboxes(*group, needs);
        };
        open(0, 2);  // room of an earlier run, of which there is none
        CHECK_FALSE(meshwright::detail::maps_message(*group, (me + 1) % n, 1));
        open(16, 4);
        CHECK(meshwright::detail::maps_message(*group, (me + 1) % n, 16) == wanted);
        CHECK_FALSE(meshwright::detail::maps_message(*group, (me + 1) % n, 17));
        world->traffic().clear();
        pass_round(*group, 3);  // what is too large goes between by sockets
        open(80, 4);
        CHECK(meshwright::detail::maps_message(*group, (me + 1) % n, 80) == wanted);
        pass_round(*group, 3);
        open(8, 2);  // room that is larger stays
        CHECK(meshwright::detail::maps_message(*group, (me + 1) % n, 80) == wanted);
        REQUIRE(world->traffic().rows().size() == 1);
        CHECK(world->traffic().rows()[0].bytes == 6 * ((3 + 4) * 4 + 2 * 10 * 8));
      });
    }
}

TEST_CASE("a message in a mailbox is sent before anybody asks for it") {
  const SharedMemory shared(true);
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    auto group = world->everyone();
    const int64_t peer = 1 - world->rank();
    meshwright::detail::open_mailboxes(*group, {{peer, 64, 2}});
    const Tensor out = at::arange(16).to(at::kFloat);
    Tensor in = at::empty({16});
    const std::vector<PeerMessage> there{send(1, out)}, here{receive(0, in)};
    if (world->rank() == 0) group->send_receive(there).wait();
    group->barrier();  // a socket would not be through before the other's receive
    if (world->rank() == 1) group->send_receive(here).wait();
    CHECK((world->rank() == 0 || in.equal(out)));
  });
}

TEST_CASE("a mailbox takes parts of tensors, and a message that nobody waits for ends") {
  const SharedMemory shared(true);
  run_ranks(2, [](const std::shared_ptr<World>& world) {
    auto group = world->everyone();
    const int64_t peer = 1 - world->rank();
    meshwright::detail::open_mailboxes(*group, {{peer, 64, 2}});
    REQUIRE(meshwright::detail::maps_message(*group, peer, 64));
    for (int turn = 0; turn < 20; ++turn) {
      const Tensor table = at::arange(16).to(at::kFloat).view({4, 4}) + turn;
      Tensor into = at::full({4, 4}, -1.0);
      const std::vector<PeerMessage> column{receive(peer, into.select(1, 2)),
                                            send(peer, table.select(1, 1))};
      Work work = group->send_receive(column);
      if (turn % 3 == 1) continue;  // dropped
      work.wait();
      CHECK(into.select(1, 2).equal(table.select(1, 1)));
      CHECK(into.select(1, 1).eq(-1.0).all().item<bool>());
    }
  });
}

TEST_CASE("who sends to or waits for a mailbox's rank that is silent is told its name") {
  const SharedMemory shared(true);
  for (bool sends : {false, true}) {
    CAPTURE(sends);
    std::string text;
    auto body = [&](const std::shared_ptr<World>& world) {
      auto group = world->everyone();
      const int64_t peer = 1 - world->rank();
      meshwright::detail::open_mailboxes(*group, {{peer, 64, 2}});
      if (world->rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(4500));
        return;
      }
      try {
        for (int i = 0; i < 3; ++i) {  // there is room for two
          const Tensor t = at::full({16}, 1.0);
          const std::vector<PeerMessage> one{sends ? send(peer, t) : receive(peer, t)};
          group->send_receive(one).wait();
        }
      } catch (const Error& error) {
        text = error.what();
      }
    };
    run_ranks(2, body, std::chrono::milliseconds(3000));
    CAPTURE(text);
    CHECK(text.find("rank 0 waited 3 s in vain for send_receive of 64 bytes in group world [0, 1]: "
                    "no word from rank 1") != std::string::npos);
  }
}

}  // namespace transport_test
