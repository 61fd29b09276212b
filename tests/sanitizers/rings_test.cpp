// The rings of shared memory under the thread sanitizer: ranks are threads that see one mapping,
// messages are plain memory, and every slot is written, read in place and given back through the
// ring's own counters alone. A missing acquire or release, a slot that is used again too early or a
// counter that is no atomic is a report.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "sdk/comm/shared_memory_ring.h"

using meshwright::detail::SharedMemoryRing;

namespace {

constexpr std::chrono::minutes kLong{2};
constexpr int64_t kNumbers = 300;  // of a message: its last slot ends inside a page

int64_t value_of(int64_t rank, int64_t turn, int64_t i) {
  return (rank * 1'000'003 + turn) * 1000 + i;
}

// Runs `body(rank, ring)` in a thread a rank.
template <class Body>
void each_rank(int64_t ranks, const SharedMemoryRing::Sizes& sizes, Body&& body) {
  const meshwright::detail::FileHandle file =
      meshwright::detail::unnamed_memory(SharedMemoryRing::bytes_of(ranks, sizes));
  REQUIRE(file);
  std::vector<std::unique_ptr<SharedMemoryRing>> boxes;
  for (int64_t rank = 0; rank < ranks; ++rank)
    boxes.push_back(SharedMemoryRing::over(file, ranks, sizes));
  for (auto& box : boxes) REQUIRE(box != nullptr);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      boxes[static_cast<size_t>(rank)]->enter(rank);
      body(rank, *boxes[static_cast<size_t>(rank)]);
    });
  for (std::thread& thread : threads) thread.join();
}

// Now and then a rank is late, each at its own turns.
void dawdle(int64_t rank, int64_t turn) {
  if ((turn * 7 + rank * 3) % 11 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(50 * (rank + 1)));
}

// What this rank puts into its slot.
int64_t put(SharedMemoryRing& box, SharedMemoryRing::Channel channel, int64_t rank, int64_t turn) {
  int64_t sequence = 0;
  auto* mine = static_cast<int64_t*>(box.stage(channel, kNumbers * 8, sequence, kLong));
  for (int64_t i = 0; i < kNumbers; ++i) mine[i] = value_of(rank, turn, i);
  box.publish(channel, sequence);
  return sequence;
}

// How many numbers of a peer's slot are not what it put there.
int64_t wrong(SharedMemoryRing& box, SharedMemoryRing::Channel channel, int64_t peer,
              int64_t sequence, int64_t turn) {
  const auto* theirs =
      static_cast<const int64_t*>(box.read(channel, peer, kNumbers * 8, sequence, kLong));
  int64_t count = 0;
  for (int64_t i = 0; i < kNumbers; ++i) count += theirs[i] != value_of(peer, turn, i);
  return count;
}

}  // namespace

TEST_CASE("messages that are read at once and given back, on both channels in turns") {
  for (int64_t ranks : {2, 3, 4}) {
    std::atomic<int64_t> mistakes = 0;
    each_rank(ranks, {{kNumbers * 8, kNumbers * 8}, {4, 2}},
              [&](int64_t rank, SharedMemoryRing& box) {
                for (int64_t turn = 0; turn < 400; ++turn) {
                  SharedMemoryRing::Channel channel =
                      turn % 3 == 2 ? SharedMemoryRing::reduce : SharedMemoryRing::gather;
                  dawdle(rank, turn);
                  int64_t sequence = put(box, channel, rank, turn);
                  for (int64_t peer = 0; peer < ranks; ++peer)
                    if (peer != rank) mistakes += wrong(box, channel, peer, sequence, turn);
                  for (int64_t peer = 0; peer < ranks; ++peer)
                    if (peer != rank) box.give_back(channel, peer, sequence);
                }
              });
    CHECK(mistakes == 0);
  }
}

TEST_CASE("messages that are kept while others come, and given back out of order") {
  for (int64_t ranks : {2, 3}) {
    std::atomic<int64_t> mistakes = 0;
    each_rank(ranks, {{kNumbers * 8, 8}, {4, 2}}, [&](int64_t rank, SharedMemoryRing& box) {
      for (int64_t round = 0; round < 200; ++round) {
        // Two gathers are under way at once, as a unit and the one that is prefetched behind it.
        int64_t first = put(box, SharedMemoryRing::gather, rank, 2 * round),
                second = put(box, SharedMemoryRing::gather, rank, 2 * round + 1);
        dawdle(rank, round);
        auto all = [&](int64_t sequence, int64_t turn) {
          for (int64_t peer = 0; peer < ranks; ++peer)
            if (peer != rank)
              mistakes += wrong(box, SharedMemoryRing::gather, peer, sequence, turn);
        };
        auto back = [&](int64_t sequence) {
          for (int64_t peer = 0; peer < ranks; ++peer)
            if (peer != rank) box.give_back(SharedMemoryRing::gather, peer, sequence);
        };
        all(first, 2 * round);
        all(second, 2 * round + 1);
        if (round % 2 == 0) {
          back(second);
          all(first, 2 * round);  // still there
          back(first);
        } else {
          back(first);
          back(second);
        }
      }
    });
    CHECK(mistakes == 0);
  }
}

TEST_CASE(
    "one rank sends and the others only read: what it waits for is their counters, and nothing "
    "else") {
  for (int64_t ranks : {2, 3}) {
    std::atomic<int64_t> mistakes = 0;
    each_rank(ranks, {{kNumbers * 8, kNumbers * 8}, {4, 2}},
              [&](int64_t rank, SharedMemoryRing& box) {
                for (SharedMemoryRing::Channel channel :
                     {SharedMemoryRing::gather, SharedMemoryRing::reduce})
                  for (int64_t turn = 0; turn < 600; ++turn) {
                    if (rank == 0) {
                      put(box, channel, rank, turn);
                      continue;
                    }
                    mistakes += wrong(box, channel, 0, turn + 1, turn);  // sequences count from 1
                    dawdle(rank, turn);
                    mistakes += wrong(box, channel, 0, turn + 1, turn);
                    box.give_back(channel, 0, turn + 1);
                  }
              });
    CHECK(mistakes == 0);
  }
}
