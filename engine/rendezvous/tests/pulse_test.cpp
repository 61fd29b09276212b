// Who ends without a good-bye is told to all others.
#include "engine/rendezvous/pulse.h"

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace pulse_test {

using meshwright::launch::RankEnvironment;
using meshwright::rendezvous::Pulse;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::vector<std::unique_ptr<Pulse>> ranks_of_one_host(int64_t world) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Pulse>> out;
  for (int64_t rank = 0; rank < world; ++rank) {
    RankEnvironment e;
    e.rank = e.local_rank = rank;
    e.world_size = e.local_world_size = world;
    out.push_back(std::make_unique<Pulse>(e, *store, milliseconds(5000)));
    CHECK(!out[0]->ended());  // looks from time to time
  }
  return out;
}

// As when the process is killed: no good-bye.
void end_badly(std::unique_ptr<Pulse>& pulse) {
  try {
    const std::unique_ptr<Pulse> mine = std::move(pulse);
    throw std::runtime_error("some error");
  } catch (const std::runtime_error&) {
  }
}

// All look in turn for so long, or until all have heard.
std::vector<int64_t> heard(std::vector<std::unique_ptr<Pulse>>& ranks, milliseconds patience) {
  std::vector<int64_t> out;
  for (const auto end = Clock::now() + patience; Clock::now() < end;
       std::this_thread::sleep_for(milliseconds(5))) {
    out.clear();
    bool all = true;
    for (const auto& pulse : ranks) {
      if (!pulse) continue;
      const std::optional<int64_t> ended = pulse->ended();
      all = all && ended;
      out.push_back(ended.value_or(-1));
    }
    if (all) break;
  }
  return out;
}

}  // namespace pulse_test

using namespace pulse_test;

TEST_CASE("a rank that ends without a good-bye is told to all others, whichever it is") {
  for (size_t victim = 0; victim < 4; ++victim) {
    CAPTURE(victim);
    std::vector<std::unique_ptr<Pulse>> ranks = ranks_of_one_host(4);
    end_badly(ranks[victim]);
    CHECK(heard(ranks, milliseconds(5000)) ==
          std::vector<int64_t>(3, static_cast<int64_t>(victim)));
  }
}

TEST_CASE("ranks that end one after the other, each with a good-bye, alarm nobody") {
  std::vector<std::unique_ptr<Pulse>> ranks = ranks_of_one_host(3);
  ranks[1].reset();
  CHECK(heard(ranks, milliseconds(100)) == std::vector<int64_t>(2, -1));
  ranks[0].reset();
  CHECK(heard(ranks, milliseconds(100)) == std::vector<int64_t>(1, -1));
}
