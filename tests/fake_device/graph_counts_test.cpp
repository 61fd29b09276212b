// What the counters say of a CUDA graph: a launch each time, with the bytes of all that is in it.
#include <doctest/doctest.h>

#include <boost/json.hpp>

#include "jobs.h"

using namespace fake_device_jobs;

TEST_CASE("a launch of a graph counts once, and what is in it only by its bytes") {
  const Folder folder;
  const Ended ended = run_ranks(
      folder.path,
      {MESHWRIGHT_BUILD_DIR "/bin/fake_device_graphs", "--no-skip", "--test-case=counted: *"}, 1,
      On::device);
  REQUIRE_MESSAGE(ended.code == 0, ended.said);
  REQUIRE(ended.counters.size() == 1);
  const boost::json::object& operators =
      ended.counters[0].at("steps").as_array().at(0).as_object().at("operators").as_object();
  CHECK_FALSE(operators.contains("aten::add_.Tensor"));
  CHECK_FALSE(operators.contains("aten::mul_.Tensor"));
  const boost::json::object& launched = operators.at("cudaGraphLaunch").as_object();
  auto of = [&](const char* key) { return launched.at(key).to_number<int64_t>(); };
  CHECK(of("calls") == 3);
  CHECK(of("kernels") == 3);
  // Two operators on 1,000 numbers of float32, in place.
  CHECK(of("read") == 3 * 2 * 4000);
  CHECK(of("written") == 3 * 2 * 4000);
}
