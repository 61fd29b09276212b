// A fault between hosts ends every rank within the timeout and ten seconds: the steps added up.
#include "engine/launch/rendezvous/deadlines.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/launch/rendezvous/notices.h"

namespace deadlines_test {

using namespace meshwright::rendezvous;
using std::chrono::milliseconds;

namespace {

const std::vector<milliseconds> kTimeouts = {milliseconds(300),        std::chrono::seconds(1),
                                             std::chrono::seconds(12), std::chrono::seconds(40),
                                             std::chrono::minutes(10), std::chrono::hours(24)};

}  // namespace

TEST_CASE("whoever timed out has ended ten seconds later, whatever the timeout") {
  // Its host has lost rank 0: it reads the exchange in vain, and posts in vain.
  CHECK(kStoreAnswers + kStoreOnceMore < kAfterTimeout);
  for (milliseconds timeout : kTimeouts) {
    CAPTURE(timeout.count());
    // So does rank 0 whose own store is silent.
    for (bool keeper : {false, true})
      CHECK(kStoreAnswers + post_limit({.silent = true, .keeper = keeper, .says = true}, timeout) <
            kAfterTimeout);
    const RollCallTimes times = roll_call_times(timeout);
    // The store answers, and another rank does not; or the store is lost in the middle.
    CHECK(times.all + kStoreOnceMore < kAfterTimeout);
    // Rank 0 has its answer, and those for whom it stays, before it takes itself for lost.
    CHECK(times.window + times.stays < times.all);
    CHECK(times.window >= milliseconds(1000));
  }
}

TEST_CASE("a connection to the store outlives a pause as long as the timeout") {
  for (milliseconds timeout : kTimeouts) {
    CAPTURE(timeout.count());
    CHECK(store_replies(timeout) >= timeout);
    CHECK(store_replies(timeout) >= std::chrono::minutes(1));
    const KeepAlive times = keep_alive_times(timeout);
    const std::chrono::seconds all(times.idle_s + times.between_s * times.times);
    CHECK(all >= timeout);
    CHECK(all >= std::chrono::minutes(2));
    CHECK(all < std::max<milliseconds>(timeout, std::chrono::minutes(2)) + milliseconds(5000));
  }
  // Whoever waits without an end: what the kernel takes.
  CHECK(keep_alive_times(milliseconds(1'000'000'000'000)).between_s == 32767);
}

TEST_CASE("ranks that look whether hosts reach each other end ten seconds after the timeout") {
  const LookTimes::Time begin{};
  for (milliseconds timeout : kTimeouts)
    for (milliseconds before : {milliseconds(0), timeout / 2, timeout}) {
      CAPTURE(timeout.count());
      CAPTURE(before.count());
      const LookTimes::Time now = begin + before, end = begin + timeout;
      const LookTimes times = look_times(now, end);
      CHECK(times.probe >= now + milliseconds(2000));
      CHECK(times.probe <= now + kProbe);
      // What a rank says comes before the one that needs it gives up.
      CHECK(times.probe < times.found);
      CHECK(times.found < times.heard);
      CHECK(times.heard < times.told);
      CHECK(times.told < times.all);
      CHECK(times.all + kStoreOnceMore < end + kAfterTimeout);
    }
}

TEST_CASE("a rank that hears late where the others are still has its word in time") {
  const LookTimes::Time end = LookTimes::Time{} + std::chrono::seconds(12);
  for (int late : {0, 1000, 2000}) {  // the table is heard two seconds after the timeout at most
    CAPTURE(late);
    const LookTimes::Time now = end + milliseconds(late);
    const LookTimes times = look_times(now, end);
    CHECK(times.probe >= now + milliseconds(500));
    CHECK(times.probe < times.found);
  }
}

TEST_CASE("who connects to hear of ends leaves the first group its time") {
  const HeartbeatTimes::Time now{};
  const HeartbeatTimes times = heartbeat_times(now);
  CHECK(times.connected < times.counted);
  CHECK(times.told < times.all);
  // A host is lost meanwhile: one side looks at the exchange twice more and posts, each in vain,
  // and rank 0 calls the roll.
  CHECK(times.all - now + 3 * kStoreOnceMore < kAfterTimeout);
  for (milliseconds timeout : kTimeouts) {
    const RollCallTimes roll = roll_call_times(timeout);
    CHECK(times.counted - now + roll.window + roll.stays < kAfterTimeout);
  }
}

TEST_CASE("a call without an end is given up, also where what is called meanwhile takes long") {
  CHECK(bounded(milliseconds(5000), [] { return 7; }) == 7);
  CHECK_THROWS_AS(bounded(milliseconds(5000), []() -> int { throw std::runtime_error("x"); }),
                  std::runtime_error);
  auto never = std::make_shared<std::latch>(1);
  int calls = 0;
  CHECK_THROWS_AS(bounded(
                      milliseconds(1600), [never] { never->wait(); },
                      [&] {
                        ++calls;
                        std::this_thread::sleep_for(milliseconds(800));
                      }),
                  NoAnswer);
  CHECK(calls <= 2);  // each begins before the limit is over
  CHECK_THROWS_AS(bounded(milliseconds(50), [never] { never->wait(); }), NoAnswer);
  never->count_down();
}

}  // namespace deadlines_test
