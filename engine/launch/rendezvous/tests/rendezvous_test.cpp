// Ranks as threads that meet over a real store: who is missing, who is odd, and how long it takes
// to say so. Long, for all cases make their ranks in the same way.
#include "engine/launch/rendezvous/rendezvous.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <arpa/inet.h>
#include <c10/util/Logging.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <latch>
#include <numeric>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "engine/launch/rendezvous/bounded.h"
#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/store_client.h"
#include "engine/launch/store_bytes.h"
#include "meshwright/error.h"
#include "sdk/comm/activity.h"

namespace rendezvous_test {

using namespace meshwright;
using namespace meshwright::rendezvous;
using launch::RankEnvironment;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

// What LibTorch has to say about broken connections is expected here.
const int kQuiet = FLAGS_caffe2_log_level = 3;

// A listening socket on loopback and its port.
struct Port {
  int fd, number;
  Port() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(fd >= 0);
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(fd, 64) == 0);
    REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    number = ntohs(address.sin_port);
  }
};

RankEnvironment rank_of(int64_t rank, int64_t world, const Port& port) {
  RankEnvironment e;
  e.source = RankEnvironment::Source::local;
  e.rank = e.local_rank = rank;
  e.world_size = e.local_world_size = world;
  e.master_port = port.number;
  e.secret = "a secret of this job";
  if (rank == 0) e.listen_fd = port.fd;  // the store closes it
  return e;
}

// A launcher's store, as torchrun's agent keeps one, and a rank that is sent to it.
c10::intrusive_ptr<c10d::TCPStore> agent_store(const Port& port) {
  c10d::TCPStoreOptions agent;
  agent.isServer = true;
  agent.port = static_cast<uint16_t>(port.number);
  agent.masterListenFd = port.fd;
  agent.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", agent);
}
RankEnvironment rank_beside(int64_t rank, int64_t world, const Port& port) {
  RankEnvironment e = rank_of(rank, world, port);
  e.listen_fd = -1;
  e.agent_store = true;
  return e;
}

struct Outcome {
  std::string message;  // empty: no error
  ErrorCode code = ErrorCode::internal;
  std::vector<std::string> helps;
};

// What each rank's part throws.
std::vector<Outcome> of_each(size_t ranks, const std::function<void(int64_t)>& part) {
  std::vector<Outcome> out(ranks);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks; ++i)
    threads.emplace_back([&, i] {
      try {
        part(static_cast<int64_t>(i));
      } catch (const Error& error) {
        out[i] = {error.message(), error.code(), error.helps()};
      } catch (const std::exception& error) {
        out[i] = {error.what(), ErrorCode::internal, {}};
      }
    });
  for (std::thread& thread : threads) thread.join();
  return out;
}

}  // namespace

TEST_CASE("ranks that are all there go on together, and groups work") {
  Port port;
  std::vector<Outcome> outcomes = of_each(3, [&](int64_t rank) {
    RankEnvironment e = rank_of(rank, 3, port);
    auto store = connect_store(e, milliseconds(20000));
    compare_ranks(*store, rank, 3, {{"plugin", "one"}}, milliseconds(20000));
    auto world = make_world(e, store, device::Chosen{}, milliseconds(20000));
    at::Tensor one = at::ones({4});
    world->everyone()->all_reduce(one).wait();
    if (one.sum().item<double>() != 12) throw std::runtime_error("wrong sum");
    world->everyone()->barrier();
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.message.empty());
}

// Whether somebody who comes to that port of loopback is let in.
bool lets_in(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  pollfd one{fd, POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof error;
  const bool answered = ::poll(&one, 1, 200) == 1 &&
                        ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  ::close(fd);
  return answered;
}

TEST_CASE("once a group is made, nobody else is let in at its ports, and it goes on") {
  Port port;
  std::set<int> before;  // what other cases may have left, and the store
  for (const OwnSocket& own : own_sockets()) before.insert(own.local_port);
  std::atomic<int> listeners = 0, open = 0;
  std::vector<Outcome> outcomes = of_each(2, [&](int64_t rank) {
    RankEnvironment e = rank_of(rank, 2, port);
    auto store = connect_store(e, milliseconds(20000));
    auto world = make_world(e, store, device::Chosen{}, milliseconds(20000));
    world->everyone()->barrier();
    if (rank == 0) {
      CHECK(lets_in(port.number));  // the store's listener, which asks for the secret
      for (const OwnSocket& own : own_sockets()) {
        if (!own.listens() || own.local != "127.0.0.1" || before.contains(own.local_port)) continue;
        ++listeners;
        open += lets_in(own.local_port) ? 1 : 0;
      }
    }
    at::Tensor one = at::ones({4});
    world->everyone()->all_reduce(one).wait();
    if (one.sum().item<double>() != 8) throw std::runtime_error("wrong sum");
    world->everyone()->barrier();
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.message.empty());
  CHECK(listeners >= 2);  // of gloo, one of each rank
  CHECK(open == 0);
}

// What the collectives of a group give this rank, one of 20 bytes and one of 400,000 a rank.
std::vector<at::Tensor> all_collectives(Group& group) {
  const int64_t n = group.size(), me = group.rank();
  auto values = [&](int64_t count, at::ScalarType type) {
    return at::arange(count, at::kDouble).mul(0.37).add(static_cast<double>(me)).sin().to(type);
  };
  std::vector<at::Tensor> out;
  for (int64_t count : {5, 100003})
    for (at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor packed = values(n * count, type), mine = values(count, type);
      auto empty = [&](int64_t size) { return at::zeros({size}, type); };
      at::Tensor whole = empty(n * count), sum = packed.clone(), part = empty(count),
                 of_others = empty((n - 1) * count), told = group.rank() == 0 ? mine : empty(count),
                 from_before = empty(count);
      group.all_gather(mine, whole).wait();
      group.all_reduce(sum).wait();
      group.reduce_scatter(packed, part).wait();
      group.pairwise_exchange(packed, of_others).wait();
      group.broadcast(told, 0).wait();
      std::vector<int64_t> sends, gets;
      for (int64_t r = 0; r < n; ++r) {
        sends.push_back(count + (3 * me + r) % 7);
        gets.push_back(count + (3 * r + me) % 7);
      }
      const int64_t sent = std::accumulate(sends.begin(), sends.end(), int64_t{0});
      at::Tensor swapped = empty(std::accumulate(gets.begin(), gets.end(), int64_t{0}));
      const at::Tensor to_swap = values(sent, type);
      group.all_to_all(to_swap, sends, swapped, gets).wait();
      group
          .send_receive(
              std::vector<PeerMessage>{{PeerMessage::Way::receive, (me + n - 1) % n, from_before},
                                       {PeerMessage::Way::send, (me + 1) % n, mine}})
          .wait();
      for (const at::Tensor& result : {whole, sum, part, of_others, told, swapped, from_before})
        out.push_back(result.clone());
    }
  return out;
}

TEST_CASE("however many connections two ranks on different hosts have, collectives give the same") {
  struct Row {
    const char* hosts;
    int64_t ranks;
  };
  for (const Row& row : {Row{"0,1", 2}, Row{"0,1,2", 3}, Row{"0,0,1,1", 4}}) {
    CAPTURE(std::string(row.hosts));
    ::setenv("MESHWRIGHT_HOSTS", row.hosts, 1);
    std::vector<std::vector<at::Tensor>> first;
    for (int64_t connections : {1, 2, 3}) {
      CAPTURE(connections);
      Port port;
      std::set<int> before;
      for (const OwnSocket& own : own_sockets()) before.insert(own.local_port);
      std::atomic<int64_t> listeners = 0;
      std::vector<std::vector<at::Tensor>> found(static_cast<size_t>(row.ranks));
      std::vector<Outcome> outcomes = of_each(found.size(), [&](int64_t rank) {
        RankEnvironment e = rank_of(rank, row.ranks, port);
        auto store = connect_store(e, milliseconds(20000));
        auto world =
            make_world(e, store, device::Chosen{}, milliseconds(20000), "", nullptr, connections);
        found[static_cast<size_t>(rank)] = all_collectives(*world->everyone());
        if (rank == 0)
          for (const OwnSocket& own : own_sockets())
            listeners += own.listens() && !before.contains(own.local_port) ? 1 : 0;
        world->everyone()->barrier();
      });
      for (const Outcome& outcome : outcomes) CHECK(outcome.message.empty());
      CHECK(listeners >= row.ranks * connections);
      if (connections == 1) {
        first = found;
        continue;
      }
      for (size_t rank = 0; rank < found.size(); ++rank) {
        REQUIRE(found[rank].size() == first[rank].size());
        for (size_t i = 0; i < found[rank].size(); ++i) {
          CAPTURE(i);
          const at::Tensor &a = found[rank][i], &b = first[rank][i];
          // Among three gloo adds in an order that depends on the cut.
          CHECK((row.ranks == 2 ? a.equal(b) : a.sub(b).abs().max().item<double>() <= 1e-6));
        }
      }
    }
  }
  ::unsetenv("MESHWRIGHT_HOSTS");
}

TEST_CASE("more connections than one are said to have no effect where no rank is on another host") {
  auto told = [](const RankEnvironment& e, const c10::intrusive_ptr<c10d::Store>& store,
                 int64_t connections) {
    return make_world(e, store, device::Chosen{}, milliseconds(20000), "", nullptr, connections)
        ->notices();
  };
  const RankEnvironment one;
  auto alone = connect_store(one, milliseconds(1));
  CHECK(told(one, alone, 1).empty());
  REQUIRE(told(one, alone, 3).size() == 1);
  CHECK(told(one, alone, 3)[0].starts_with("dist_env.connections_per_peer = 3 has no effect: one"));
  Port port;
  std::vector<std::vector<std::string>> notices(2);
  std::vector<c10::intrusive_ptr<c10d::Store>> stores(2);  // kept for the other rank
  of_each(2, [&](int64_t rank) {
    const auto i = static_cast<size_t>(rank);
    RankEnvironment e = rank_of(rank, 2, port);
    e.local_world_told = true;
    stores[i] = connect_store(e, milliseconds(20000));
    notices[i] = told(e, stores[i], 3);
  });
  REQUIRE(notices[0].size() == 1);
  CHECK(notices[0][0] ==
        "dist_env.connections_per_peer = 3 has no effect: all ranks are on one host");
}

TEST_CASE("a world of one needs nobody") {
  auto store = connect_store(RankEnvironment{}, milliseconds(1));
  CHECK(store != nullptr);
  compare_ranks(*store, 0, 1, {{"plugin", "one"}}, milliseconds(1));
  CHECK(make_world(RankEnvironment{}, store, device::Chosen{}, milliseconds(1))->size() == 1);
}

TEST_CASE("one rank alone is told that the interface it was given has no effect") {
  auto notices = [](const std::string& interface) {
    auto store = connect_store(RankEnvironment{}, milliseconds(1));
    return make_world(RankEnvironment{}, store, device::Chosen{}, milliseconds(1), interface)
        ->notices();
  };
  CHECK(notices("").empty());
  std::vector<std::string> told = notices("nic9");
  REQUIRE(told.size() == 1);
  CHECK(told[0].starts_with("dist_env.interface = \"nic9\" has no effect"));
}

TEST_CASE("missing ranks are named on all that came, soon after the timeout") {
  Port port;
  auto begin = Clock::now();
  std::vector<Outcome> outcomes =
      of_each(2, [&](int64_t i) { connect_store(rank_of(i * 2, 12, port), milliseconds(700)); });
  CHECK(Clock::now() - begin < milliseconds(6000));
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.code == ErrorCode::rendezvous_failed);
    CHECK(outcome.message ==
          "all timed out after 0.7 s at 127.0.0.1:" + std::to_string(port.number) +
              ": there is no rank 1, 3, 4, 5, 6, 7, 8, 9 and 2 more of 12");
    CHECK(outcome.helps.size() == 2);
  }
}

TEST_CASE(
    "ranks that differ in WORLD_SIZE, or share a number, say so without waiting for the timeout") {
  {
    Port port;
    for (const Outcome& outcome : of_each(2, [&](int64_t i) {
           connect_store(rank_of(i, i == 0 ? 2 : 3, port), milliseconds(60000));
         })) {
      CHECK(outcome.code == ErrorCode::ranks_disagree);
      CHECK(outcome.message == "rank 1 has WORLD_SIZE 3, rank 0 has 2");
    }
  }
  {
    // One that rank 0 does not count among its own.
    Port port;
    c10::intrusive_ptr<c10d::Store> kept[3];  // the store ends with rank 0's
    std::vector<Outcome> outcomes = of_each(3, [&](int64_t i) {
      kept[i] = connect_store(rank_of(i, i == 2 ? 3 : 2, port), milliseconds(60000));
    });
    CHECK(outcomes[0].message.empty());
    CHECK(outcomes[1].message.empty());
    CHECK(outcomes[2].message == "rank 2 has WORLD_SIZE 3, rank 0 has 2");
  }
  {
    Port port;
    for (const Outcome& outcome : of_each(3, [&](int64_t i) {
           connect_store(rank_of(i == 0 ? 0 : 1, 3, port), milliseconds(60000));
         })) {
      CHECK(outcome.code == ErrorCode::bad_rank_environment);
      CHECK(outcome.message.starts_with("two processes have RANK 1"));
    }
  }
}

TEST_CASE("a rank that does not know the secret ends alone; the others say who is missing") {
  Port port;
  auto begin = Clock::now();
  std::vector<Outcome> outcomes = of_each(3, [&](int64_t rank) {
    RankEnvironment e = rank_of(rank, 3, port);
    if (rank == 1) e.secret = "a secret of another";
    connect_store(e, milliseconds(3000));
  });
  CHECK(Clock::now() - begin < milliseconds(10000));
  CHECK(outcomes[1].code == ErrorCode::rendezvous_failed);
  CHECK(outcomes[1].message ==
        "rank 1 was refused by rank 0 at 127.0.0.1:" + std::to_string(port.number) +
            ": the two do not have the same MESHWRIGHT_JOB_SECRET");
  CHECK(outcomes[1].helps.size() == 1);
  for (size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(outcomes[rank].code == ErrorCode::rendezvous_failed);
    CHECK(outcomes[rank].message ==
          "all timed out after 3.0 s at 127.0.0.1:" + std::to_string(port.number) +
              ": there is no rank 1 of 3; refused: 127.0.0.1, which does not know the job's "
              "secret");
  }
}

TEST_CASE("without a secret a second job on the port is refused, and the first goes on") {
  Port port;
  auto open = [&](int64_t rank, int64_t world) {
    RankEnvironment e = rank_of(rank, world, port);
    e.secret.clear();
    return e;
  };
  c10::intrusive_ptr<c10d::Store> kept[2];  // the store ends with rank 0's
  std::vector<Outcome> first;
  std::thread job([&] {
    first = of_each(
        2, [&](int64_t rank) { kept[rank] = connect_store(open(rank, 3), milliseconds(60000)); });
  });
  // Rank 2 of the first job, by hand: it sees that rank 1 is there, and comes last.
  auto two =
      remote_store({"127.0.0.1", port.number, {"", "", 2, 3, wire::random_bytes(wire::kProcess)}},
                   Clock::now() + milliseconds(60000), milliseconds(60000));
  two->wait({"meshwright/0/join/1"}, milliseconds(60000));
  auto comes = [&](int64_t rank, int64_t world) {
    return of_each(1, [&](int64_t) { connect_store(open(rank, world), milliseconds(20000)); })[0];
  };
  Outcome second = comes(2, 5);
  CHECK(second.code == ErrorCode::ranks_disagree);
  CHECK(second.message == "rank 2 has WORLD_SIZE 5, rank 0 has 3");
  second = comes(1, 3);
  CHECK(second.code == ErrorCode::bad_rank_environment);
  CHECK(second.message.starts_with("two processes have RANK 1"));
  two->set("meshwright/0/join/2", base::bytes_of("3"));
  job.join();
  for (const Outcome& outcome : first) CHECK(outcome.message == "");
}

TEST_CASE("what an earlier attempt left in a launcher's store means nothing") {
  Port port;
  auto keeper = agent_store(port);
  struct Row {
    const char* secret;
    int64_t restart;
  };
  // A store of rank 0's own is another for each attempt, whatever its number.
  const char* const secret = "a secret of this job";
  for (const Row& row : {Row{"", 0}, Row{"", 1}, Row{secret, 2}, Row{secret, 2}, Row{secret, 3}}) {
    const int64_t restart = row.restart;
    for (const Outcome& outcome : of_each(2, [&](int64_t rank) {
           RankEnvironment e = rank_beside(rank, 2, port);
           e.secret = row.secret;
           e.restart = restart;
           auto store = connect_store(e, milliseconds(20000));
           compare_ranks(*store, rank, 2, {{"attempt", std::to_string(restart)}},
                         milliseconds(20000));
         }))
      CHECK(outcome.message == "");
  }
}

TEST_CASE("words that no rank says end nothing in a launcher's store, to which anybody may write") {
  Port port;
  auto keeper = agent_store(port);
  for (const char* word : {"", "nobody", "7", "-1"}) {
    keeper->set("meshwright/0/join/twice", base::bytes_of(word));
    for (const std::string key : {"seen/0", "seen/1", "0", "1", "all", "all/read"})
      keeper->deleteKey("meshwright/0/join/" + key);
    for (const Outcome& outcome : of_each(2, [&](int64_t rank) {
           RankEnvironment e = rank_beside(rank, 2, port);
           e.secret.clear();
           connect_store(e, milliseconds(20000));
         }))
      CHECK(outcome.message == "");
  }
}

TEST_CASE("with a secret the launcher's store tells where that of rank 0 is, and nothing else") {
  Port port;
  auto keeper = agent_store(port);
  auto under_agent = [&](int64_t rank, const std::string& secret) {
    RankEnvironment e = rank_beside(rank, 2, port);
    e.secret = secret;
    return e;
  };
  const std::string secret = "a secret of this job";
  const int64_t before = keeper->getNumKeys();
  for (const Outcome& outcome : of_each(2, [&](int64_t rank) {
         auto store = connect_store(under_agent(rank, secret), milliseconds(20000));
         compare_ranks(*store, rank, 2, {{"plugin", "one"}}, milliseconds(20000));
       }))
    CHECK(outcome.message == "");
  CHECK(keeper->getNumKeys() == before + 1);
  const std::string told = base::text_of(keeper->get("meshwright/0/store"));
  CHECK(told.ends_with(" 127.0.0.1"));
  CHECK(told != std::to_string(port.number) + " 127.0.0.1");
  // Who knows the launcher's store alone gets no further.
  keeper->deleteKey("meshwright/0/store");
  std::vector<Outcome> stranger = of_each(2, [&](int64_t rank) {
    connect_store(under_agent(rank, rank == 0 ? secret : "a secret of another"),
                  milliseconds(1500));
  });
  CHECK(stranger[1].message.ends_with("the two do not have the same MESHWRIGHT_JOB_SECRET"));
  CHECK(stranger[0].message.find("127.0.0.1, which does not know the job's secret") !=
        std::string::npos);
  // One that has no secret, or alone has one, is told so.
  for (bool first_has : {true, false}) {
    keeper->deleteKey("meshwright/0/store");
    const std::vector<Outcome> uneven = of_each(2, [&](int64_t rank) {
      connect_store(under_agent(rank, (rank == 0) == first_has ? secret : ""), milliseconds(1500));
    });
    CHECK(uneven[1].message.ends_with(
        first_has ? "the job has a secret, and MESHWRIGHT_JOB_SECRET is not set here"
                  : "MESHWRIGHT_JOB_SECRET is set here, and rank 0 has none"));
    CHECK(uneven[0].code == ErrorCode::rendezvous_failed);
  }
  for (const char* key : {"seen/0", "seen/1", "0", "1", "all", "all/read"})
    keeper->deleteKey(std::string("meshwright/0/join/") + key);
  // Nor does a rank believe whatever is written there.
  struct Row {
    const char *written, *words;
  };
  for (const Row& row : {Row{"nowhere", "left in the store under \"store\" is no number"},
                         Row{"7 a.b.c", "\"7 a.b.c\", as the launcher's store says, is no place"},
                         Row{"0 127.0.0.1", "is no place"}}) {
    keeper->set("meshwright/0/store", base::bytes_of(row.written));
    const std::vector<Outcome> lost =
        of_each(1, [&](int64_t) { connect_store(under_agent(1, secret), milliseconds(1500)); });
    CAPTURE(lost[0].message);
    CHECK(lost[0].code == ErrorCode::rendezvous_failed);
    CHECK(lost[0].message.find(row.words) != std::string::npos);
  }
}

TEST_CASE("a port that is taken, one where nobody listens, one that is silent") {
  Port taken;
  try {
    ::close(listen_on(taken.number, true));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.message() == "rank 0 cannot listen on 127.0.0.1:" + std::to_string(taken.number) +
                                 ": Address already in use");
    REQUIRE(error.helps().size() == 3);
    CHECK(error.helps()[0].starts_with("set MASTER_PORT"));
  }
  auto begin = Clock::now();
  std::vector<Outcome> silent =
      of_each(1, [&](int64_t) { connect_store(rank_of(1, 2, taken), milliseconds(500)); });
  CHECK(silent[0].code == ErrorCode::rendezvous_failed);
  CHECK(silent[0].message ==
        "rank 1 could not reach the store of rank 0 at 127.0.0.1:" + std::to_string(taken.number) +
            " within 0.5 s: somebody accepts connections there and says nothing");
  auto helped = [](const Outcome& outcome, const char* words) {
    return std::any_of(outcome.helps.begin(), outcome.helps.end(), [&](const std::string& help) {
      return help.find(words) != std::string::npos;
    });
  };
  CHECK(helped(silent[0], "another program may have the port"));
  ::close(taken.fd);
  std::vector<Outcome> nobody =
      of_each(1, [&](int64_t) { connect_store(rank_of(1, 2, taken), milliseconds(500)); });
  CHECK(nobody[0].message.ends_with(" within 0.5 s: Connection refused"));
  CHECK(helped(nobody[0], "check that rank 0 runs"));
  CHECK(Clock::now() - begin < milliseconds(6000));
  CHECK(try_connect("no.such.host.invalid", 1, Clock::now()) != "");
}

TEST_CASE("a call without an end is given up; others bring what they return or throw") {
  CHECK(bounded(milliseconds(5000), [] { return 7; }) == 7);
  CHECK_THROWS_AS(bounded(milliseconds(5000), []() -> int { throw Error(ErrorCode::usage, "x"); }),
                  Error);
  auto begin = Clock::now();
  CHECK_THROWS_AS(
      bounded(milliseconds(50), [] { std::this_thread::sleep_for(milliseconds(2000)); }), NoAnswer);
  CHECK(Clock::now() - begin < milliseconds(1500));
}

TEST_CASE(
    "the odd ranks are those unlike the majority, at a tie unlike rank 0; every rank hears the "
    "same") {
  struct Row {
    std::vector<Facts> facts;
    std::string verdict;
  };
  const Facts a = {{"plugin", "fsdp2 1"},
                   {"distributed.strategy", "fsdp2"},
                   {"distributed.fsdp2.offload_policy", "none"}},
              b = {{"plugin", "ddp 1"},
                   {"distributed.strategy", "ddp"},
                   {"distributed.ddp.bucket_cap_mb", "25"}};
  auto lr = [&](const std::string& value) {
    Facts out = a;
    out.emplace_back("optimizer.lr", value);
    return out;
  };
  auto all_differ = [](const std::string& value) {
    Facts out;
    for (char key = 'a'; key < 'i'; ++key) out.emplace_back(std::string(1, key), value);
    return out;
  };
  const std::string strategy =
      "plugin ddp 1, the others fsdp2 1; distributed.strategy ddp, the others fsdp2";
  for (const Row& row : std::vector<Row>{
           {{a, a, a}, ""},
           {{a, a, b}, "rank 2 has " + strategy},
           {{b, a, a}, "rank 0 has " + strategy},
           {{a, b}, "rank 1 has " + strategy},
           {{a, b, a, b, a}, "ranks 1, 3 have " + strategy},
           {{lr("1"), lr("2"), lr("1"), lr("3")},
            "rank 1 has optimizer.lr 2, the others 1; rank 3 has optimizer.lr 3, the others 1"},
           {{a, lr("2")}, "rank 1 has optimizer.lr 2, which the others do not have"},
           {{lr("2"), a}, "rank 1 has no optimizer.lr, the others 2"},
           {{all_differ("1"), all_differ("2")},
            "rank 1 has a 2, the others 1; b 2, the others 1; c 2, the others 1; d 2, the others "
            "1; e 2, the others 1; f 2, the others 1; "
            "and 2 more"},
           {{lr("1"), lr(std::string(200, 'x'))},
            "rank 1 has optimizer.lr " + std::string(77, 'x') + "..., the others 1"},
       }) {
    CAPTURE(row.verdict);
    auto store = c10::make_intrusive<c10d::HashStore>();
    auto world = static_cast<int64_t>(row.facts.size());
    std::vector<Outcome> outcomes = of_each(row.facts.size(), [&](int64_t rank) {
      compare_ranks(*store, rank, world, row.facts[static_cast<size_t>(rank)], milliseconds(20000));
    });
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.message == row.verdict);
      if (!row.verdict.empty()) {
        CHECK(outcome.code == ErrorCode::ranks_disagree);
        CHECK(outcome.helps.size() == 1);
      }
    }
  }
}

TEST_CASE(
    "a rank that does not come to be compared is named by rank 0, and no rank waits for ever") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  auto begin = Clock::now();
  std::vector<Outcome> outcomes = of_each(
      2, [&](int64_t rank) { compare_ranks(*store, rank, 3, {{"a", "b"}}, milliseconds(300)); });
  CHECK(outcomes[0].code == ErrorCode::rendezvous_failed);
  CHECK(
      outcomes[0].message.starts_with("rank 0 timed out: rank 2 did not say what it is to train;"));
  CHECK(outcomes[1].code == ErrorCode::rendezvous_failed);
  CHECK(outcomes[1].message ==
        "rank 1 could not compare itself with the others: rank 0 gave no verdict within 0.3 s, or "
        "ended");
  CHECK(Clock::now() - begin < milliseconds(6000));
}

TEST_CASE("a collective that some do not join names them, the group and the operation") {
  Port port;
  std::vector<Outcome> outcomes = of_each(3, [&](int64_t rank) {
    RankEnvironment e = rank_of(rank, 3, port);
    auto store = connect_store(e, milliseconds(20000));
    auto world = make_world(e, store, device::Chosen{}, milliseconds(1000));
    world->everyone()->barrier();
    at::Tensor one = at::ones({5000});
    if (rank != 1) world->everyone()->all_reduce(one).wait();
    if (rank == 1) std::this_thread::sleep_for(milliseconds(5000));
  });
  for (size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(outcomes[rank].code == ErrorCode::collective_timeout);
    CHECK(outcomes[rank].message == "rank " + std::to_string(rank) +
                                        " waited 1 s in vain for all_reduce of 20.0 kB in group "
                                        "world [0, 1, 2]: no word from rank 1");
    CHECK(outcomes[rank].helps[0] ==
          "look at the log of rank 1: it hangs, is stopped or runs something else");
  }
}

// Ranks of a pipeline wait in a chain, or here in a ring: all of them answer.
TEST_CASE("where all ranks are late, the one is named that waits in what comes first") {
  Port port;
  const std::vector<int64_t> orders{7, 5, 9};
  std::latch told(3);  // on a busy machine the first would be gone before the last has asked it
  std::vector<Outcome> outcomes = of_each(3, [&](int64_t rank) {
    RankEnvironment e = rank_of(rank, 3, port);
    auto store = connect_store(e, milliseconds(20000));
    auto world = make_world(e, store, device::Chosen{}, milliseconds(1000));
    world->everyone()->barrier();
    const int64_t order = orders[static_cast<size_t>(rank)];
    const std::string what = "step " + std::to_string(order), within = "a layer";
    const meshwright::detail::Activity activity(what, "which receives", order);
    const meshwright::detail::Activity inner(within, "forward");
    at::Tensor one = at::ones({10});
    const std::array<PeerMessage, 1> message{
        PeerMessage{PeerMessage::Way::receive, (rank + 1) % 3, one}};
    try {
      world->everyone()->send_receive(message).wait();
    } catch (...) {
      told.arrive_and_wait();
      throw;
    }
    told.arrive_and_wait();
  });
  for (size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(outcomes[rank].code == ErrorCode::collective_timeout);
    CHECK(outcomes[rank].message ==
          "rank " + std::to_string(rank) +
              " waited 1 s in vain for send_receive of 40 bytes in group world [0, 1, 2]: rank 1 "
              "is the furthest behind (step 5, which receives), in a layer, forward");
    CHECK(outcomes[rank].helps[0] == "look at the log of rank 1: the others wait for it");
  }
  // The one that is behind says what it waits for itself.
  CHECK(outcomes[1].message ==
        "rank 1 waited 1 s in vain for send_receive of 40 bytes in group world [0, 1, 2]: no word "
        "from rank 2, in a layer, forward");
}

TEST_CASE(
    "a peer whose connection is lost is called by rank and host, not by the port of a socket") {
  Port port;
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  std::atomic<bool> gone = false;
  std::vector<Outcome> outcomes = of_each(2, [&](int64_t rank) {
    RankEnvironment e = rank_of(rank, 2, port);
    auto store = connect_store(e, milliseconds(20000));
    auto world = make_world(e, store, device::Chosen{}, milliseconds(20000));
    at::Tensor ones = at::ones({1024});
    world->everyone()->all_reduce(ones).wait();
    if (rank == 1) {
      world.reset();
      gone = true;
      return;
    }
    while (!gone) std::this_thread::sleep_for(milliseconds(5));
    world->everyone()->all_reduce(ones).wait();
  });
  CHECK(outcomes[1].message.empty());
  CHECK(outcomes[0].code == ErrorCode::collective_failed);
  CHECK(outcomes[0].message.find("rank 1 on " + std::string(host) + " (127.0.0.1)") !=
        std::string::npos);
  CHECK(outcomes[0].message.find("]:") == std::string::npos);
  CHECK(outcomes[0].message.find("pair.cc") == std::string::npos);
}

}  // namespace rendezvous_test
