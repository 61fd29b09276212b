// A plugin that ends the process, or lets replicas drift apart: no run looks done, and nothing
// wrong is saved.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "program.h"

using namespace faults;
namespace fs = std::filesystem;

namespace {

const std::string kPlugin =
    MESHWRIGHT_BUILD_DIR "/fixtures/plugins/libmeshwright_fixture_misbehaves.so";

std::vector<std::string> arguments(int64_t ranks, const std::vector<std::string>& sets = {}) {
  std::vector<std::string> out{"--nproc", std::to_string(ranks)};
  for (const std::string& set :
       {"plugins.load=[\"" + kPlugin + "\"]",
        std::string("distributed.strategy=fixture_misbehaves"),
        std::string("step_scheduler.max_steps=6"), std::string("dist_env.timeout_minutes=1")})
    out.insert(out.end(), {"--set", set});
  for (const std::string& set : sets) out.insert(out.end(), {"--set", set});
  return out;
}

}  // namespace

TEST_CASE("the plugin of these tests trains when nothing is asked of it") {
  Program program;
  Ended ended = program.run(arguments(2));
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  CHECK(fs::exists(program.run_folder() / "checkpoints/step_00000006"));
}

TEST_CASE(
    "a plugin that calls exit(0) in any phase fails the run, by name, alone and with local ranks") {
  for (const char* what : {"exit in create", "exit in plan", "exit in parallelize", "exit in step",
                           "quick_exit in step", "_exit in step"})
    for (int64_t ranks : {1, 2}) {
      CAPTURE(what);
      CAPTURE(ranks);
      if (std::string(what).starts_with("_") && ranks == 1)
        continue;  // nothing in the process can notice it
      Program program;
      Ended ended = program.run(arguments(ranks), {{"FIXTURE_MISBEHAVES", what}});
      CAPTURE(ended.err);
      CHECK(ended.code == 2);
      CHECK(ended.says("error[E0424]: "));
      CHECK(ended.says(kPlugin));
      CHECK(!fs::exists(program.run_folder() / "checkpoints/step_00000006"));
    }
}

TEST_CASE(
    "a strategy whose parts are not what it says of them is refused before anything is read into "
    "them") {
  Program program;
  Ended ended = program.run(arguments(2), {{"FIXTURE_MISBEHAVES", "wrong region"}});
  CAPTURE(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.says("error[E0423]: the strategy fixture_misbehaves says that model."));
  CHECK(ended.says("but its part has the shape [1, "));
  CHECK(ended.says("ParallelParameter::region"));
}

TEST_CASE("replicas that drift apart are never saved: strategy, parameter and rank are named") {
  for (const char* background : {"false", "true"})
    for (const char* on_failure : {"stop", "continue"}) {
      CAPTURE(background);
      CAPTURE(on_failure);
      Program program;
      Ended ended = program.run(
          arguments(3, {std::string("checkpoint.async=") + background, "checkpoint.every_steps=2",
                        std::string("checkpoint.on_failure=") + on_failure}),
          {{"FIXTURE_MISBEHAVES", "drift"}});
      CAPTURE(ended.out);
      CAPTURE(ended.err);
      CHECK(ended.code == 7);
      CHECK(ended.says("error[E0714]: rank 1 holds other values of "));
      CHECK(ended.says("than ranks 0, 2"));
      CHECK(ended.says("strategy fixture_misbehaves"));
      // Also when the run is to live with saves that fail: there is no use in training such
      // replicas on, and room is not what is missing.
      CHECK(ended.out.find("the run goes on") == std::string::npos);
      CHECK(!ended.says("make room"));
      CHECK(!ended.says("on_failure"));
      if (fs::exists(program.run_folder() / "checkpoints"))
        CHECK(fs::is_empty(program.run_folder() / "checkpoints"));
    }
}
