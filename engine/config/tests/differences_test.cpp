#include "engine/config/differences.h"

#include <doctest/doctest.h>

using namespace meshwright;
using namespace meshwright::config;

TEST_CASE("configurations beside each other: what differs, key by key, and what is not there") {
  Diagnostics diagnostics;
  const auto a = settings_of("seed = 1\n[a]\nx = 1  # why\nlist = [1, 2]\n[a.b]\ny = \"z\"\n", "a",
                             diagnostics),
             b = settings_of("seed = 1\n[a]\nx = 2\n[a.b]\ny = \"z\"\n", "b", diagnostics);
  REQUIRE(diagnostics.ok());
  CHECK(a == std::vector<Setting>{
                 {"seed", "1"}, {"a.x", "1"}, {"a.list", "[1, 2]"}, {"a.b.y", "\"z\""}});
  const std::vector<Difference> found = differences({a, b});
  REQUIRE(found.size() == 2);
  CHECK(found[0].key == "a.x");
  CHECK(found[0].values == std::vector<std::string>{"1", "2"});
  CHECK(found[1].key == "a.list");
  CHECK(found[1].values == std::vector<std::string>{"[1, 2]", ""});
  CHECK(differences({a, a}).empty());
  CHECK(settings_of("[a\n", "c", diagnostics).empty());
  CHECK(!diagnostics.ok());
}
