#include "engine/launch/spawn.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>

TEST_CASE(
    "the soft limit of open files becomes the hard one, at most a million, and never less than it "
    "was") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(before.rlim_max >= 128);
  rlimit low = before, after{};
  low.rlim_cur = 64;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  meshwright::launch::raise_descriptor_limit();
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &after) == 0);
  CHECK(after.rlim_cur == std::min<rlim_t>(before.rlim_max, 1 << 20));
  CHECK(after.rlim_max == before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}
