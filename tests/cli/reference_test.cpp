// docs/reference.md is made from the option schemas and must be up to date.
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/contents.h"

TEST_CASE("the reference page is what the program prints") {
  std::string printed;
  std::FILE* pipe =
      popen("'" MESHWRIGHT_BUILD_DIR "/bin/meshwright' config explain --reference", "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    printed.append(buffer.data(), n);
  CHECK(pclose(pipe) == 0);
  CHECK_MESSAGE(contents(MESHWRIGHT_SOURCE_DIR "/docs/reference.md") == printed,
                "refresh it: build/bin/meshwright config explain --reference > docs/reference.md");
}
