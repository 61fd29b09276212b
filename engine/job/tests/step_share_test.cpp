// What a step reads of all data.
#include "engine/job/job.h"

#include <doctest/doctest.h>

namespace step_share_test {

namespace data = meshwright::data;

TEST_CASE("steps of an epoch, and documents of a step where they are counted") {
  CHECK(data::tell_steps(32, 8, 83) == "an epoch is 4 steps of 8 samples, 20.8 documents a step");
  CHECK(data::tell_steps(25, 8, 25) == "an epoch is 3.1 steps of 8 samples, 8.0 documents a step");
  CHECK(data::tell_steps(2, 1, 5) == "an epoch is 2 steps of 1 sample, 2.5 documents a step");
  CHECK(data::tell_steps(4, 8, std::nullopt) == "an epoch is 0.5 steps of 8 samples");
  CHECK(data::documents_a_step(83, 32, 8) == 20.75);
  CHECK(data::documents_in({{"rows", 9}, {"used", 7}}) == 7);
  CHECK_FALSE(data::documents_in({{"rows", 9}}).has_value());
  CHECK(data::inspector_of({}) == nullptr);  // the engine's own kinds have no rows
}

}  // namespace step_share_test
