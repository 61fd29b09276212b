// How a sample's tokens lie on the ranks of cp.
#include "sdk/base/context_split.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <set>
#include <vector>

namespace context_split_test {

using namespace meshwright;

std::vector<int64_t> positions(const ContextSplit& split, int64_t rank) {
  std::vector<int64_t> out;
  for (const PositionRun& run : split.runs_of(rank))
    for (int64_t i = 0; i < run.count; ++i) out.push_back(run.position + i);
  return out;
}

TEST_CASE("context split: two ranks hold head and tail of sixteen tokens") {
  ContextSplit split(16, 2);
  CHECK(split.runs_of(0) == std::vector<PositionRun>{{0, 4}, {12, 4}});
  CHECK(split.runs_of(1) == std::vector<PositionRun>{{4, 8}});
  CHECK(split.padded() == 16);
  CHECK(split.rows() == 8);
  ContextSplit plain(16, 2, ContextBalance::contiguous);
  CHECK(plain.runs_of(0) == std::vector<PositionRun>{{0, 8}});
  CHECK(plain.runs_of(1) == std::vector<PositionRun>{{8, 8}});
}

TEST_CASE("context split: every position lies on one rank, where its chunk says") {
  for (ContextBalance balance : {ContextBalance::head_tail, ContextBalance::contiguous})
    for (int64_t ranks = 1; ranks <= 8; ++ranks)
      for (int64_t length : {1, 2, 3, 7, 15, 16, 17, 31, 64, 100, 129}) {
        CAPTURE(ranks);
        CAPTURE(length);
        ContextSplit split(length, ranks, balance);
        const int64_t multiple =
            ranks > 1 && balance == ContextBalance::head_tail ? 2 * ranks : ranks;
        CHECK(split.padded() % multiple == 0);
        CHECK(split.padded() >= length);
        CHECK(split.padded() - length < multiple);
        std::set<int64_t> seen;
        int64_t tokens = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          std::vector<int64_t> mine = positions(split, rank);
          CHECK(static_cast<int64_t>(mine.size()) == split.rows());
          int64_t real = 0;
          for (std::size_t row = 0; row < mine.size(); ++row) {
            CHECK(seen.insert(mine[row]).second);
            real += mine[row] < length;
            const int64_t chunk = mine[row] / split.chunk();
            CHECK(split.rank_of(chunk) == rank);
            CHECK(split.row_of(chunk) + mine[row] % split.chunk() == static_cast<int64_t>(row));
          }
          CHECK(split.tokens_of(rank) == real);
          tokens += real;
        }
        CHECK(static_cast<int64_t>(seen.size()) == split.padded());
        CHECK(tokens == length);
      }
}

TEST_CASE("context split: causal attention is the same work on every rank, head and tail") {
  for (int64_t ranks = 2; ranks <= 8; ++ranks) {
    ContextSplit split(ranks * 2 * 5, ranks);
    const int64_t n = split.chunk();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      int64_t products = 0;
      for (int64_t position : positions(split, rank)) products += position + 1;
      CHECK(products == 2 * n * (2 * n + 1) / 2 + (ranks - 1) * 2 * n * n);
    }
  }
}

TEST_CASE("context split: a window sees the chunks that hold its positions") {
  for (int64_t ranks = 1; ranks <= 4; ++ranks)
    for (int64_t length : {8, 24, 37})
      for (int64_t window : {0, 1, 2, 5, 8, 40}) {
        ContextSplit split(length, ranks);
        for (int64_t chunk = 0; chunk < split.chunks(); ++chunk) {
          const int64_t first = chunk * split.chunk();
          const int64_t oldest = window == 0 ? 0 : std::max<int64_t>(0, first - window + 1);
          CHECK(split.first_seen(chunk, window) == oldest / split.chunk());
        }
      }
}

}  // namespace context_split_test
