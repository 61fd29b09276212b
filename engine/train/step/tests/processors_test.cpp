#include "engine/train/step/rank_agreement.h"

#include <doctest/doctest.h>

namespace processors_test {

using meshwright::train::unlike_vectors;

TEST_CASE("ranks on processors of unlike vectors are told apart") {
  CHECK(unlike_vectors({"AVX2"}) == "");
  CHECK(unlike_vectors({"AVX512", "AVX512"}) == "");
  CHECK(unlike_vectors({"AVX512", "AVX2", "AVX512"})
            .find("(rank 1 with AVX2, ranks 0, 2 with AVX512)") != std::string::npos);
}

}  // namespace processors_test
