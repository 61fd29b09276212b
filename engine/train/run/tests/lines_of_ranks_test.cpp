// What only some ranks were told reaches the one that speaks, once, with those that were told.
#include "engine/train/run/reporter.h"

#include <mutex>

#include "meshwright/parallel/testing.h"

#include <doctest/doctest.h>

namespace lines_of_ranks_test {

using namespace meshwright;
using Lines = std::vector<std::string>;

namespace {

// What every rank hears when rank i says told[i].
std::vector<Lines> heard(const std::vector<Lines>& told) {
  std::vector<Lines> out(told.size());
  run_ranks(static_cast<int64_t>(told.size()), [&](const std::shared_ptr<World>& world) {
    const auto rank = static_cast<size_t>(world->rank());
    out[rank] = train::lines_of_all_ranks(*world, told[rank]);
  });
  return out;
}

}  // namespace

TEST_CASE("lines of all ranks come once, those of others with their ranks") {
  const std::vector<Lines> found =
      heard({{"a", "b\nand more"}, {"c", "a"}, {"b\nand more"}, {"c"}});
  for (const Lines& lines : found) CHECK(lines == Lines{"a", "b\nand more", "ranks 1, 3: c"});
  CHECK(heard({{}, {}, {"d"}})[0] == Lines{"rank 2: d"});
  CHECK(heard({{}, {}})[1].empty());
  CHECK(heard({{"alone"}})[0] == Lines{"alone"});
}

}  // namespace lines_of_ranks_test
