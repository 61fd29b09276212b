// Who ends without a good-bye is told to all others.
#include "engine/launch/rendezvous/heartbeat.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/store_bytes.h"

namespace heartbeat_test {

using meshwright::base::bytes_of;
using meshwright::base::text_of;
using meshwright::launch::RankEnvironment;
using meshwright::rendezvous::bound_port;
using meshwright::rendezvous::connect_to;
using meshwright::rendezvous::Heartbeat;
using meshwright::rendezvous::heartbeat_times;
using meshwright::rendezvous::listen_on;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

RankEnvironment of_one_host(int64_t rank, int64_t world) {
  RankEnvironment out;
  out.rank = out.local_rank = rank;
  out.world_size = out.local_world_size = world;
  return out;
}

std::vector<std::unique_ptr<Heartbeat>> ranks_of_one_host(int64_t world) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Heartbeat>> out;
  for (int64_t rank = 0; rank < world; ++rank) {
    out.push_back(std::make_unique<Heartbeat>(of_one_host(rank, world), *store,
                                              heartbeat_times(Clock::now())));
    CHECK(!out[0]->ended());  // looks from time to time
  }
  CHECK(out[0]->unwatched(*store, Clock::now() + milliseconds(20000)).empty());
  return out;
}

// Where rank 0 listens, as it has left it in the store: port, token and address.
std::string told_in(c10d::Store& store) { return text_of(store.get("heartbeat")); }
int port_in(c10d::Store& store) { return std::stoi(told_in(store)); }

// As when the process is killed: no good-bye.
void end_badly(std::unique_ptr<Heartbeat>& heartbeat) {
  try {
    const std::unique_ptr<Heartbeat> mine = std::move(heartbeat);
    throw std::runtime_error("some error");
  } catch (const std::runtime_error&) {
  }
}

// All look in turn for so long, or until all have heard.
std::vector<int64_t> heard(std::vector<std::unique_ptr<Heartbeat>>& ranks, milliseconds patience) {
  std::vector<int64_t> out;
  for (const auto end = Clock::now() + patience; Clock::now() < end;
       std::this_thread::sleep_for(milliseconds(5))) {
    out.clear();
    bool all = true;
    for (const auto& heartbeat : ranks) {
      if (!heartbeat) continue;
      const std::optional<int64_t> ended = heartbeat->ended();
      all = all && ended;
      out.push_back(ended.value_or(-1));
    }
    if (all) break;
  }
  return out;
}

TEST_CASE("a rank that ends without a good-bye is told to all others, whichever it is") {
  for (size_t victim = 0; victim < 4; ++victim) {
    CAPTURE(victim);
    std::vector<std::unique_ptr<Heartbeat>> ranks = ranks_of_one_host(4);
    end_badly(ranks[victim]);
    CHECK(heard(ranks, milliseconds(5000)) ==
          std::vector<int64_t>(3, static_cast<int64_t>(victim)));
  }
}

TEST_CASE("ranks that end one after the other, each with a good-bye, alarm nobody") {
  std::vector<std::unique_ptr<Heartbeat>> ranks = ranks_of_one_host(3);
  ranks[1].reset();
  CHECK(heard(ranks, milliseconds(100)) == std::vector<int64_t>(2, -1));
  ranks[0].reset();
  CHECK(heard(ranks, milliseconds(100)) == std::vector<int64_t>(1, -1));
}

TEST_CASE("a line that ends before rank 0 has heard who is there says nothing of rank 0") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Heartbeat>> ranks;
  for (int64_t rank = 0; rank < 2; ++rank)
    ranks.push_back(
        std::make_unique<Heartbeat>(of_one_host(rank, 2), *store, heartbeat_times(Clock::now())));
  end_badly(ranks[0]);  // which has not looked
  CHECK(heard(ranks, milliseconds(100)) == std::vector<int64_t>{-1});
}

TEST_CASE("rank 0 lets in so many at once, whoever they are, and the ranks all the same") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Heartbeat>> ranks;
  ranks.push_back(
      std::make_unique<Heartbeat>(of_one_host(0, 2), *store, heartbeat_times(Clock::now())));
  const int port = port_in(*store);
  std::vector<int> strangers;
  for (int i = 0; i < 400; ++i) {
    strangers.push_back(connect_to("127.0.0.1", port, Clock::now() + milliseconds(10000)));
    REQUIRE(strangers.back() >= 0);
  }
  ranks.push_back(
      std::make_unique<Heartbeat>(of_one_host(1, 2), *store, heartbeat_times(Clock::now())));
  CHECK(!ranks[0]->ended());
  const auto hung_up_on = std::count_if(strangers.begin(), strangers.end(), [](int fd) {
    char byte = 0;
    return ::recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
  });
  CHECK(hung_up_on <= 256);
  CHECK(!ranks[0]->ended());  // now rank 1 has been heard
  end_badly(ranks[1]);
  CHECK(heard(ranks, milliseconds(5000)) == std::vector<int64_t>{1});
  for (int fd : strangers) ::close(fd);
}

TEST_CASE("rank 0 says which ranks could not connect, and watches the others") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Heartbeat>> ranks;
  auto come = [&](int64_t rank, milliseconds patience) {
    auto times = heartbeat_times(Clock::now());
    times.connected = Clock::now() + patience;
    ranks.push_back(std::make_unique<Heartbeat>(of_one_host(rank, 4), *store, times));
  };
  come(0, milliseconds(5000));
  const std::string told = told_in(*store);
  const int closed = listen_on(0, /*loopback_only=*/true);
  const std::string nowhere = std::to_string(bound_port(closed)) + told.substr(told.find(' '));
  ::close(closed);
  store->set("heartbeat", bytes_of(nowhere));
  for (int64_t rank : {3, 1}) come(rank, milliseconds(0));
  // Not all have tried: what is known is said when the time is over.
  CHECK(ranks[0]
            ->unwatched(*store, Clock::now() + milliseconds(50))
            .starts_with("ranks 1, 3 could not connect to port " + told.substr(0, told.find(' ')) +
                         " of rank 0"));
  store->set("heartbeat", bytes_of(told));
  come(2, milliseconds(5000));
  CHECK(ranks[0]
            ->unwatched(*store, Clock::now() + milliseconds(20000))
            .starts_with("ranks 1, 3 could not connect"));
  CHECK(!ranks[0]->ended());
  end_badly(ranks[3]);  // rank 2
  std::vector<std::unique_ptr<Heartbeat>> first;
  first.push_back(std::move(ranks[0]));
  CHECK(heard(first, milliseconds(5000)) == std::vector<int64_t>{2});
  CHECK(!ranks[1]->ended());
}

TEST_CASE("who finds that it cannot connect when rank 0 has counted is named after that, once") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  Heartbeat first(of_one_host(0, 4), *store, heartbeat_times(Clock::now()));
  const std::string told = told_in(*store);
  const int closed = listen_on(0, /*loopback_only=*/true);
  const std::string nowhere = std::to_string(bound_port(closed)) + told.substr(told.find(' '));
  ::close(closed);
  store->set("heartbeat", bytes_of(nowhere));
  std::vector<std::unique_ptr<Heartbeat>> others;
  auto come = [&](int64_t rank) {
    auto times = heartbeat_times(Clock::now());
    times.connected = Clock::now();
    others.push_back(std::make_unique<Heartbeat>(of_one_host(rank, 4), *store, times));
  };
  CHECK(first.unwatched_since(*store).empty());
  come(2);
  CHECK(first.unwatched(*store, Clock::now()).starts_with("rank 2 could not connect to port "));
  CHECK(first.unwatched_since(*store).empty());  // named already
  for (int64_t rank : {3, 1}) come(rank);
  CHECK(first.unwatched_since(*store).starts_with("ranks 1, 3 could not connect to port "));
  CHECK(first.unwatched_since(*store).empty());
}

TEST_CASE("under an agent nobody looks for rank 0 where MASTER_ADDR leads but where rank 0 says") {
  for (bool agent : {false, true}) {
    CAPTURE(agent);
    auto store = c10::make_intrusive<c10d::HashStore>();
    Heartbeat first(of_one_host(0, 2), *store, heartbeat_times(Clock::now()));
    store->set("heartbeat", bytes_of(told_in(*store) + "127.0.0.2"));  // where nobody listens
    RankEnvironment other = of_one_host(1, 2);
    other.local_world_size = 1;
    other.agent_store = agent;
    auto times = heartbeat_times(Clock::now());
    times.connected = Clock::now() + milliseconds(500);
    Heartbeat second(other, *store, times);
    CHECK(first.unwatched(*store, Clock::now() + milliseconds(20000)).empty() == !agent);
  }
}

}  // namespace heartbeat_test
