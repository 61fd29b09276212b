// Attention over the ranks of cp on a bad network: late messages change nothing, and a rank that
// does not come is named with what was waited for. The first header before doctest: LibTorch has a
// CHECK of its own.
#include "sdk/parallel/tests/context_samples.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "meshwright/error.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/tests/faulty_transport.h"
#include "sdk/comm/tests/sampled.h"
#include "sdk/comm/tests/shared_memory_switch.h"

namespace context_faults_test {

using namespace meshwright;
using namespace meshwright::context_samples;
using meshwright::testing::faulty_world;
using std::chrono::milliseconds;

using meshwright::testing::SharedMemory;

namespace {

constexpr int64_t kLength = 24, kWindow = 11;

// Exchanges of one call on a rank of cp = 2 over sockets: of a forward, and of all.
struct Way {
  const char* name;
  Case of;
  int64_t window, forward, all;
};
const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"all_gather", {2, 2, 1, ContextMethod::all_gather}, 0, 4, 6},  // three ask for shared memory
      {"ring", {2, 2, 1, ContextMethod::ring}, 0, 1, 3},
      {"window", {2, 2, 1, ContextMethod::ring}, kWindow, 1, 3},
      {"ulysses", {2, 1, 2, ContextMethod::ulysses}, 0, 4, 8}};
  return all;
}

// How the last rank fails the others: before its exchange of this number, -1: between forward and
// backward. `leaves`: its connections break; else it is silent.
struct Failure {
  int64_t exchange = -1;
  bool leaves = true;
};

// What rank 0 is told.
std::string told(const Way& way, const Failure& failure, milliseconds timeout) {
  const Whole whole(kLength, {4, 2}, way.window, at::kFloat);
  std::string text;
  std::atomic<bool> heard = false;
  auto body = [&](const std::shared_ptr<World>& world) {
    const bool victim = world->rank() == way.of.ranks - 1;
    auto faulty = faulty_world(world, {.stop = victim ? failure.exchange : -1}, timeout);
    // What the ranks of a job find out by asking each other.
    if (way.of.ranks > 2)
      set_liveness_check(
          *faulty, [&](const RollCall&) { return RollAnswers{.silent = {way.of.ranks - 1}}; });
    try {
      run_on(*faulty, whole, way.of, [&] {
        if (victim && failure.exchange < 0) throw std::runtime_error("left by a test");
      });
    } catch (const Error& error) {
      if (world->rank() == 0) {
        text = error.what();
        heard = true;
        throw;
      }
      while (victim && !failure.leaves && !heard) std::this_thread::sleep_for(milliseconds(1));
      throw;
    }
  };
  CHECK_THROWS(run_ranks(way.of.ranks, body, timeout));
  return text;
}

std::string ending(bool forward) {
  return ", in attention of " + kCore + (forward ? ", forward" : ", backward");
}

}  // namespace

TEST_CASE("context attention: a rank that ends in an exchange is told of by layer and direction") {
  for (const Way& way : ways()) {
    INFO(std::string(way.name));
    {
      SharedMemory sockets(false);
      for (int64_t exchange = 0; exchange < way.all; ++exchange) {
        CAPTURE(exchange);
        const std::string text = told(way, {.exchange = exchange}, std::chrono::seconds(30));
        CAPTURE(text);
        CHECK(text.starts_with("error[E0602]: rank 0: "));
        CHECK(text.find(" in group cp [0, 1] failed: ") != std::string::npos);
        CHECK(text.ends_with(ending(exchange < way.forward)));
        CHECK(text.find('\n') == std::string::npos);
      }
    }
    SharedMemory shared(true);
    const std::string text = told(way, {}, std::chrono::seconds(30));
    CAPTURE(text);
    CHECK(text.starts_with("error[E0602]: rank 0: "));
    CHECK(text.ends_with(ending(false)));
    if (std::string(way.name) == "all_gather")
      CHECK(text.find(" in group cp [0, 1] failed: rank 1 ended, in attention") !=
            std::string::npos);
  }
}

TEST_CASE("context attention: a rank that is silent is named with axis, layer and direction") {
  const Way three{"ring of three", {3, 3, 1, ContextMethod::ring}, 0, 2, 6};
  SharedMemory sockets(false);
  for (const auto& [way, exchange] : std::vector<std::pair<Way, int64_t>>{
           {ways()[0], 4}, {ways()[1], 2}, {ways()[2], 1}, {ways()[3], 7}, {three, 0}}) {
    INFO(std::string(way.name));
    const std::string text = told(way, {.exchange = exchange, .leaves = false}, milliseconds(1000));
    CAPTURE(text);
    const std::string last = std::to_string(way.of.ranks - 1),
                      group = way.of.ranks == 2 ? "[0, 1]" : "[0, 1, 2]";
    CHECK(text.starts_with("error[E0601]: rank 0 waited 1 s in vain for "));
    CHECK(text.ends_with(" in group cp " + group + ": no word from rank " + last +
                         ending(exchange < way.forward)));
  }
}

TEST_CASE("context attention: delays at every exchange change no bit") {
  struct Row {
    const char* name;
    Case of;
    int64_t window;
  };
  for (const Row& row : {Row{"all_gather", {3, 3, 1, ContextMethod::all_gather}, 0},
                         Row{"ring", {3, 3, 1, ContextMethod::ring}, 0},
                         Row{"window", {3, 3, 1, ContextMethod::all_gather}, kWindow},
                         Row{"ulysses", {4, 1, 4, ContextMethod::ulysses}, 0},
                         Row{"ring x ulysses", {4, 2, 2, ContextMethod::ring}, 0}}) {
    INFO(std::string(row.name));
    const Whole whole(kLength, {4, 2}, row.window, at::kBFloat16);
    const int64_t times = all_layouts() ? 100 : 25;
    std::atomic<int64_t> different = 0, same = 0;
    run_ranks(row.of.ranks, [&](const std::shared_ptr<World>& world) {
      const Found truth = run_on(*world, whole, row.of);
      for (uint64_t seed = 1; seed <= static_cast<uint64_t>(times); ++seed) {
        auto slow = faulty_world(world, {.seed = 10 * seed, .max_delay_us = 100, .reorder = true},
                                 std::chrono::seconds(60));
        std::mt19937_64 random(10 * seed + static_cast<uint64_t>(world->rank()));
        const Found found = run_on(*slow, whole, row.of, [&] {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        });
        const bool alike = found.out.equal(truth.out) && found.to_query.equal(truth.to_query) &&
                           found.to_key.equal(truth.to_key) && found.to_value.equal(truth.to_value);
        ++(alike ? same : different);
      }
    });
    CHECK(different == 0);
    CHECK(same == times * row.of.ranks);
  }
}

}  // namespace context_faults_test
