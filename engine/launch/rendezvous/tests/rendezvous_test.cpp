// Ranks as threads that meet over a real store: who is missing, who is odd, and how long it takes
// to say so. Long, for all cases make their ranks in the same way.
#include "engine/launch/rendezvous/rendezvous.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Logging.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <latch>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/rendezvous/store.h"
#include "engine/launch/spawn.h"
#include "meshwright/error.h"
#include "sdk/base/host_facts.h"
#include "sdk/comm/activity.h"
#include "sdk/comm/tests/shared_memory_switch.h"

namespace rendezvous_test {

using namespace meshwright;
using namespace meshwright::rendezvous;
using launch::RankEnvironment;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

// What LibTorch has to say about broken connections is expected here.
const int kQuiet = FLAGS_caffe2_log_level = 3;

constexpr milliseconds kLong(20000);
const std::string kSecret = "a secret of this job";

// A listening socket on loopback and its port.
struct Port {
  int fd = listen_at(kLoopback, 0), number = local_end(fd).port;
  std::string place() const { return "127.0.0.1:" + std::to_string(number); }
};

RankEnvironment rank_of(int64_t rank, int64_t world, const Port& port) {
  RankEnvironment e;
  e.source = RankEnvironment::Source::local;
  e.rank = e.local_rank = rank;
  e.world_size = e.local_world_size = world;
  e.master_port = port.number;
  e.secret = kSecret;
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
RankEnvironment rank_beside(int64_t rank, int64_t world, const Port& port,
                            const std::string& secret) {
  RankEnvironment e = rank_of(rank, world, port);
  e.listen_fd = -1;
  e.agent_store = true;
  e.secret = secret;
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

// The same where nothing may go wrong.
void of_each_well(size_t ranks, const std::function<void(int64_t)>& part) {
  for (const Outcome& outcome : of_each(ranks, part)) CHECK(outcome.message == "");
}

// A rank that meets the others, and its world, which keeps the store.
std::shared_ptr<World> meet(int64_t rank, int64_t world, const Port& port,
                            milliseconds timeout = kLong, int64_t connections = 1) {
  const RankEnvironment e = rank_of(rank, world, port);
  return make_world(e, connect_store(e, kLong), device::Chosen{}, timeout, "", nullptr,
                    connections);
}

// Where this process listens on loopback, but for ports that are known.
std::set<int> listening_ports(const std::set<int>& but = {}) {
  std::set<int> out;
  for (const OwnSocket& own : own_sockets())
    if (own.listens() && !but.contains(own.local.port)) out.insert(own.local.port);
  return out;
}

// Whether somebody who comes to that port of loopback is let in.
bool lets_in(int port) {
  const int fd = connect_to(kLoopback, port, Clock::now() + milliseconds(200));
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

}  // namespace

TEST_CASE("once a group is made, nobody else is let in at its ports, and it goes on") {
  Port port;
  const std::set<int> before = listening_ports();  // what other cases may have left, and the store
  of_each_well(2, [&](int64_t rank) {
    auto world = meet(rank, 2, port);
    world->everyone()->barrier();
    if (rank == 0) {
      CHECK(lets_in(port.number));  // the store's listener, which asks for the secret
      const std::set<int> of_gloo = listening_ports(before);
      CHECK(of_gloo.size() >= 2);  // one of each rank
      CHECK(std::ranges::none_of(of_gloo, lets_in));
    }
    at::Tensor one = at::ones({4});
    world->everyone()->all_reduce(one).wait();
    if (one.sum().item<double>() != 8) throw std::runtime_error("wrong sum");
    world->everyone()->barrier();
  });
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
    const testing::Variable hosts("MESHWRIGHT_HOSTS", row.hosts);
    std::vector<std::vector<at::Tensor>> first;
    for (int64_t connections : {1, 2, 3}) {
      CAPTURE(connections);
      Port port;
      const std::set<int> before = listening_ports();
      std::vector<std::vector<at::Tensor>> found(static_cast<size_t>(row.ranks));
      of_each_well(found.size(), [&](int64_t rank) {
        auto world = meet(rank, row.ranks, port, kLong, connections);
        found[static_cast<size_t>(rank)] = all_collectives(*world->everyone());
        if (rank == 0) CHECK(std::ssize(listening_ports(before)) >= row.ranks * connections);
        world->everyone()->barrier();
      });
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
}

TEST_CASE("more connections than one are said to have no effect where no rank is on another host") {
  Port port;
  std::vector<std::vector<std::string>> notices(2);
  std::vector<std::shared_ptr<World>> worlds(2);  // kept for the other rank
  of_each(2, [&](int64_t rank) {
    const auto i = static_cast<size_t>(rank);
    worlds[i] = meet(rank, 2, port, kLong, 3);
    notices[i] = worlds[i]->notices();
  });
  REQUIRE(notices[0].size() == 1);
  CHECK(notices[0][0] ==
        "dist_env.connections_per_peer = 3 has no effect: all ranks are on one host");
}

TEST_CASE("one rank alone is told that the interface it was given has no effect") {
  const RankEnvironment one;
  auto store = connect_store(one, milliseconds(1));
  REQUIRE(store != nullptr);
  compare_ranks(*store, 0, 1, {{"plugin", "one"}}, milliseconds(1));
  struct Row {
    std::string interface;
    int64_t connections;
    const char* told;
  };
  for (const Row& row :
       {Row{"", 1, ""}, Row{"nic9", 1, "dist_env.interface = \"nic9\" has no effect"},
        Row{"", 3, "dist_env.connections_per_peer = 3 has no effect: one"}}) {
    CAPTURE(row.told);
    auto world = make_world(one, store, device::Chosen{}, milliseconds(1), row.interface, nullptr,
                            row.connections);
    CHECK(world->size() == 1);
    REQUIRE(world->notices().size() == (*row.told == '\0' ? 0U : 1U));
    for (const std::string& notice : world->notices()) CHECK(notice.starts_with(row.told));
  }
}

TEST_CASE("missing ranks are named on all that came, soon after the timeout") {
  Port port;
  auto begin = Clock::now();
  std::vector<Outcome> outcomes =
      of_each(2, [&](int64_t i) { connect_store(rank_of(i * 2, 12, port), milliseconds(700)); });
  CHECK(Clock::now() - begin < milliseconds(6000));
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.code == ErrorCode::rendezvous_failed);
    CHECK(outcome.message == "all timed out after 0.7 s at " + port.place() +
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
  CHECK(outcomes[1].message == "rank 1 was refused by rank 0 at " + port.place() +
                                   ": the two do not have the same MESHWRIGHT_JOB_SECRET");
  CHECK(outcomes[1].helps.size() == 1);
  for (size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(outcomes[rank].code == ErrorCode::rendezvous_failed);
    CHECK(outcomes[rank].message ==
          "all timed out after 3.0 s at " + port.place() +
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
      remote_store({"127.0.0.1", port.number, {"", "", 2, 3, launch::random_bytes(wire::kProcess)}},
                   Clock::now() + milliseconds(60000), milliseconds(60000));
  two->wait({"meshwright/0/join/1"}, milliseconds(60000));
  auto comes = [&](int64_t rank, int64_t world) {
    return of_each(1, [&](int64_t) { connect_store(open(rank, world), kLong); })[0];
  };
  Outcome second = comes(2, 5);
  CHECK(second.code == ErrorCode::ranks_disagree);
  CHECK(second.message == "rank 2 has WORLD_SIZE 5, rank 0 has 3");
  second = comes(1, 3);
  CHECK(second.code == ErrorCode::bad_rank_environment);
  CHECK(second.message.starts_with("two processes have RANK 1"));
  two->set("meshwright/0/join/2", bytes_of("3"));
  job.join();
  for (const Outcome& outcome : first) CHECK(outcome.message == "");
}

TEST_CASE("what an earlier attempt left in a launcher's store means nothing") {
  Port port;
  auto keeper = agent_store(port);
  struct Row {
    std::string secret;
    int64_t restart;
  };
  // A store of rank 0's own is another for each attempt, whatever its number.
  for (const Row& row : {Row{"", 0}, Row{"", 1}, Row{kSecret, 2}, Row{kSecret, 2}, Row{kSecret, 3}})
    of_each_well(2, [&](int64_t rank) {
      RankEnvironment e = rank_beside(rank, 2, port, row.secret);
      e.restart = row.restart;
      auto store = connect_store(e, kLong);
      compare_ranks(*store, rank, 2, {{"attempt", std::to_string(row.restart)}}, kLong);
    });
}

TEST_CASE("words that no rank says end nothing in a launcher's store, to which anybody may write") {
  Port port;
  auto keeper = agent_store(port);
  for (const char* word : {"", "nobody", "7", "-1"}) {
    keeper->set("meshwright/0/join/twice", bytes_of(word));
    for (const std::string key : {"seen/0", "seen/1", "0", "1", "all", "all/read"})
      keeper->deleteKey("meshwright/0/join/" + key);
    of_each_well(2, [&](int64_t rank) { connect_store(rank_beside(rank, 2, port, ""), kLong); });
  }
}

TEST_CASE("with a secret the launcher's store tells where that of rank 0 is, and nothing else") {
  Port port;
  auto keeper = agent_store(port);
  auto under_agent = [&](int64_t rank, const std::string& secret) {
    return rank_beside(rank, 2, port, secret);
  };
  const int64_t before = keeper->getNumKeys();
  of_each_well(2, [&](int64_t rank) {
    auto store = connect_store(under_agent(rank, kSecret), kLong);
    compare_ranks(*store, rank, 2, {{"plugin", "one"}}, kLong);
  });
  CHECK(keeper->getNumKeys() == before + 1);
  const std::string told = text_of(keeper->get("meshwright/0/store"));
  CHECK(told.find("127.0.0.1") != std::string::npos);
  CHECK(told.find(std::to_string(port.number)) == std::string::npos);
  // Who knows the launcher's store alone gets no further.
  keeper->deleteKey("meshwright/0/store");
  std::vector<Outcome> stranger = of_each(2, [&](int64_t rank) {
    connect_store(under_agent(rank, rank == 0 ? kSecret : "a secret of another"),
                  milliseconds(1500));
  });
  CHECK(stranger[1].message.ends_with("the two do not have the same MESHWRIGHT_JOB_SECRET"));
  CHECK(stranger[0].message.find("127.0.0.1, which does not know the job's secret") !=
        std::string::npos);
  // One that has no secret, or alone has one, is told so.
  for (bool first_has : {true, false}) {
    keeper->deleteKey("meshwright/0/store");
    const std::vector<Outcome> uneven = of_each(2, [&](int64_t rank) {
      connect_store(under_agent(rank, (rank == 0) == first_has ? kSecret : ""), milliseconds(1500));
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
  for (const Row& row :
       {Row{"nowhere", "left in the store under \"store\" is nothing that a rank says"},
        Row{R"({"port":7,"address":"a.b.c","local":""})",
            "a.b.c:7, as the launcher's store says, is no place"},
        Row{R"({"port":70000,"address":"127.0.0.1","local":""})", "is no place"},
        Row{R"({"port":7,"address":"","local":"10.0.0.1"})", "is no place"}}) {
    keeper->set("meshwright/0/store", bytes_of(row.written));
    const std::vector<Outcome> lost =
        of_each(1, [&](int64_t) { connect_store(under_agent(1, kSecret), milliseconds(1500)); });
    CAPTURE(lost[0].message);
    CHECK(lost[0].code == ErrorCode::rendezvous_failed);
    CHECK(lost[0].message.find(row.words) != std::string::npos);
  }
}

TEST_CASE("a port that is taken, one where nobody listens, one that is silent") {
  Port taken;
  try {
    ::close(listen_at(kLoopback, taken.number));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.message() ==
          "rank 0 cannot listen on " + taken.place() + ": Address already in use");
    REQUIRE(error.helps().size() == 3);
    CHECK(error.helps()[0].starts_with("set MASTER_PORT"));
  }
  auto begin = Clock::now();
  std::vector<Outcome> silent =
      of_each(1, [&](int64_t) { connect_store(rank_of(1, 2, taken), milliseconds(500)); });
  CHECK(silent[0].code == ErrorCode::rendezvous_failed);
  CHECK(silent[0].message ==
        "rank 1 could not reach the store of rank 0 at " + taken.place() +
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
  std::string why;
  CHECK(connect_to("no.such.host.invalid", 1, Clock::now(), &why) == -1);
  CHECK(why != "");
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
      compare_ranks(*store, rank, world, row.facts[static_cast<size_t>(rank)], kLong);
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

// On a busy machine a rank may come to the call of the roll after the second that it is open, and
// is rightly called silent; then the ranks are late once more.
std::vector<Outcome> in_time(const std::function<std::vector<Outcome>()>& late,
                             const std::function<bool(const std::string&)>& too_late) {
  std::vector<Outcome> out = late();
  for (int turn = 0; turn < 5 && std::ranges::any_of(
                                     out, [&](const Outcome& o) { return too_late(o.message); });
       ++turn)
    out = late();
  return out;
}

TEST_CASE("a collective that some do not join names them, the group and the operation") {
  const auto outcomes = in_time(
      [] {
        Port port;
        return of_each(3, [&](int64_t rank) {
          auto world = meet(rank, 3, port, milliseconds(1000));
          world->everyone()->barrier();
          at::Tensor one = at::ones({5000});
          if (rank != 1) world->everyone()->all_reduce(one).wait();
          if (rank == 1) std::this_thread::sleep_for(milliseconds(5000));
        });
      },
      [](const std::string& message) {
        return message.find("no word from ranks") != std::string::npos;
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
  const std::vector<int64_t> orders{7, 5, 9};
  const auto ring = [&] {
    Port port;
    std::latch told(3);  // on a busy machine the first would be gone before the last has asked it
    return of_each(3, [&](int64_t rank) {
      auto world = meet(rank, 3, port, milliseconds(1000));
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
  };
  // The one that is behind says what it waits for itself.
  const std::string behind =
      "rank 1 waited 1 s in vain for send_receive of 40 bytes in group world [0, 1, 2]: no word "
      "from rank 2, in a layer, forward";
  const auto outcomes = in_time(ring, [&](const std::string& message) {
    return message != behind && message.find("furthest behind") == std::string::npos;
  });
  for (size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(outcomes[rank].code == ErrorCode::collective_timeout);
    CHECK(outcomes[rank].message ==
          "rank " + std::to_string(rank) +
              " waited 1 s in vain for send_receive of 40 bytes in group world [0, 1, 2]: rank 1 "
              "is the furthest behind (step 5, which receives), in a layer, forward");
    CHECK(outcomes[rank].helps[0] == "look at the log of rank 1: the others wait for it");
  }
  CHECK(outcomes[1].message == behind);
}

TEST_CASE(
    "a peer whose connection is lost is called by rank and host, not by the port of a socket") {
  Port port;
  std::atomic<bool> gone = false;
  std::vector<Outcome> outcomes = of_each(2, [&](int64_t rank) {
    auto world = meet(rank, 2, port);
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
  CHECK(outcomes[0].message.find("rank 1 on " + host_name() + " (127.0.0.1)") != std::string::npos);
  CHECK(outcomes[0].message.find("]:") == std::string::npos);
  CHECK(outcomes[0].message.find("pair.cc") == std::string::npos);
}

}  // namespace rendezvous_test
