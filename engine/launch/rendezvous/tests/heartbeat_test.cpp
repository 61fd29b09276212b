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
#include "engine/launch/rendezvous/notices.h"

namespace heartbeat_test {

using namespace meshwright::rendezvous;
using meshwright::launch::RankEnvironment;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

// Ranks of one host, of one process here.
struct Job {
  int64_t world;
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Heartbeat>> ranks = {};
  RankEnvironment environment(int64_t rank) const {
    RankEnvironment out;
    out.rank = out.local_rank = rank;
    out.world_size = out.local_world_size = world;
    return out;
  }
  void come(const RankEnvironment& as, milliseconds patience = milliseconds(5000)) {
    HeartbeatTimes times = heartbeat_times(Clock::now());
    times.connected = Clock::now() + patience;
    ranks.push_back(std::make_unique<Heartbeat>(as, *store, times));
  }
  void come(int64_t rank, milliseconds patience = milliseconds(5000)) {
    come(environment(rank), patience);
  }
  void all_come() {
    for (int64_t rank = 0; rank < world; ++rank) {
      come(rank);
      CHECK(!ranks[0]->ended());  // looks from time to time
    }
    CHECK(unwatched(milliseconds(20000)).empty());
  }
  std::string unwatched(milliseconds patience) const {
    return ranks[0]->unwatched(*store, Clock::now() + patience);
  }
  // Where rank 0 listens, as it has left it in the store, and what it has left there now.
  std::string told() const { return text_of(store->get("heartbeat")); }
  void tell(const std::string& text) const { store->set("heartbeat", bytes_of(text)); }
  int port() const { return std::stoi(told().substr(told().find(':') + 1)); }
  void tell_closed_port() const {
    const int closed = listen_at(kLoopback, 0);
    const std::string before = told();
    const size_t at = before.find(':') + 1;
    tell(std::string(before).replace(at, before.find(',') - at,
                                     std::to_string(local_end(closed).port)));
    ::close(closed);
  }
  // All look in turn for so long, or until all have heard.
  std::vector<int64_t> heard(milliseconds patience) const {
    std::vector<int64_t> out;
    for (const auto end = Clock::now() + patience; Clock::now() < end;
         std::this_thread::sleep_for(milliseconds(5))) {
      out.clear();
      for (const auto& heartbeat : ranks)
        if (heartbeat) out.push_back(heartbeat->ended().value_or(-1));
      if (std::ranges::count(out, -1) == 0) break;
    }
    return out;
  }
};

// As when the process is killed: no good-bye.
void end_badly(std::unique_ptr<Heartbeat>& heartbeat) {
  try {
    const std::unique_ptr<Heartbeat> mine = std::move(heartbeat);
    throw std::runtime_error("some error");
  } catch (const std::runtime_error&) {
  }
}

}  // namespace

TEST_CASE("a rank that ends without a good-bye is told to all others, whichever it is") {
  for (size_t victim = 0; victim < 4; ++victim) {
    CAPTURE(victim);
    Job job{4};
    job.all_come();
    end_badly(job.ranks[victim]);
    CHECK(job.heard(milliseconds(5000)) == std::vector<int64_t>(3, static_cast<int64_t>(victim)));
  }
}

TEST_CASE("ranks that end one after the other, each with a good-bye, alarm nobody") {
  Job job{3};
  job.all_come();
  job.ranks[1].reset();
  CHECK(job.heard(milliseconds(100)) == std::vector<int64_t>(2, -1));
  job.ranks[0].reset();
  CHECK(job.heard(milliseconds(100)) == std::vector<int64_t>(1, -1));
}

TEST_CASE("a line that ends before rank 0 has heard who is there says nothing of rank 0") {
  Job job{2};
  job.come(0);
  job.come(1);
  end_badly(job.ranks[0]);  // which has not looked
  CHECK(job.heard(milliseconds(100)) == std::vector<int64_t>{-1});
}

TEST_CASE("rank 0 lets in so many at once, whoever they are, and the ranks all the same") {
  Job job{2};
  job.come(0);
  std::vector<int> strangers;
  for (int i = 0; i < 400; ++i) {
    strangers.push_back(connect_to(kLoopback, job.port(), Clock::now() + milliseconds(10000)));
    REQUIRE(strangers.back() >= 0);
  }
  job.come(1);
  CHECK(!job.ranks[0]->ended());
  const auto hung_up_on = std::ranges::count_if(strangers, [](int fd) {
    char byte = 0;
    return ::recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
  });
  CHECK(hung_up_on <= 256);
  CHECK(!job.ranks[0]->ended());  // now rank 1 has been heard
  end_badly(job.ranks[1]);
  CHECK(job.heard(milliseconds(5000)) == std::vector<int64_t>{1});
  for (int fd : strangers) ::close(fd);
}

TEST_CASE("rank 0 says which ranks could not connect, and watches the others") {
  Job job{4};
  job.come(0);
  const std::string told = job.told(), port = std::to_string(job.port());
  job.tell_closed_port();
  for (int64_t rank : {3, 1}) job.come(rank, milliseconds(0));
  // Not all have tried: what is known is said when the time is over.
  CHECK(job.unwatched(milliseconds(50))
            .starts_with("ranks 1, 3 could not connect to port " + port + " of rank 0"));
  job.tell(told);
  job.come(2);
  CHECK(job.unwatched(milliseconds(20000)).starts_with("ranks 1, 3 could not connect"));
  CHECK(!job.ranks[0]->ended());
  end_badly(job.ranks[3]);  // rank 2
  CHECK(!job.ranks[1]->ended());
  job.ranks.resize(1);
  CHECK(job.heard(milliseconds(5000)) == std::vector<int64_t>{2});
}

TEST_CASE("who finds that it cannot connect when rank 0 has counted is named after that, once") {
  Job job{4};
  job.come(0);
  auto since = [&] { return job.ranks[0]->unwatched_since(*job.store); };
  job.tell_closed_port();
  CHECK(since().empty());
  job.come(2, milliseconds(0));
  CHECK(job.unwatched(milliseconds(0)).starts_with("rank 2 could not connect to port "));
  CHECK(since().empty());  // named already
  for (int64_t rank : {3, 1}) job.come(rank, milliseconds(0));
  CHECK(since().starts_with("ranks 1, 3 could not connect to port "));
  CHECK(since().empty());
}

TEST_CASE("under an agent nobody looks for rank 0 where MASTER_ADDR leads but where rank 0 says") {
  for (bool agent : {false, true}) {
    CAPTURE(agent);
    Job job{2};
    job.come(0);
    std::string told = job.told();
    told.insert(told.rfind('"'), "127.0.0.2");  // where nobody listens
    job.tell(told);
    RankEnvironment other = job.environment(1);
    other.local_world_size = 1;
    other.agent_store = agent;
    job.come(other, milliseconds(500));
    CHECK(job.unwatched(milliseconds(20000)).empty() == !agent);
  }
}

}  // namespace heartbeat_test
