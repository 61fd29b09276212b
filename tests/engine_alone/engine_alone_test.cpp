// The engine trains without the apps that watch a run, judge it and foretell its steps.
#include <unistd.h>

#include <doctest/doctest.h>

#include "tests/train_configs/trained.h"

namespace engine_alone_test {

TEST_CASE("without its apps the engine trains as with them, and says what it does without") {
  const fs::path library = MESHWRIGHT_BUILD_DIR "/lib",
                 here = fs::path(MESHWRIGHT_BUILD_DIR) / "engine_alone";
  fs::remove_all(here);
  fs::create_directories(here);
  for (const char* file : {"libmeshwright_sdk.so.1", "libmeshwright_runtime.so.1", "meshwright"})
    if (fs::exists(library / file)) fs::create_symlink(library / file, here / file);
  fs::create_symlink(ENGINE_ALONE, here / "libmeshwright_engine.so.1");
  const std::string job =
      "train configs/first_fsdp2_cpu.toml --nproc 2 --set step_scheduler.max_steps=3 --set "
      "report.csv=true --set report.machine=cpu --set run.dir='" +
      here.string() + "' ";
  int status = 1;
  const std::string with = said(job + "--set run.name=with", &status);
  REQUIRE_MESSAGE(status == 0, with);
  CHECK(fs::exists(here / "with/metrics.csv"));
  const std::string alone =
      said(job + "--set run.name=alone", &status, "LD_LIBRARY_PATH='" + here.string() + "'");
  REQUIRE_MESSAGE(status == 0, alone);
  CHECK(!fs::exists(here / "alone/metrics.csv"));
  for (const char* part : {"[report] is left out: it is for a build with apps/observe",
                           "no step time is predicted: report.machine is for a build with "
                           "apps/performance"})
    CHECK_MESSAGE(alone.find(part) != std::string::npos, alone);
  // The same steps, to the bit.
  const auto losses = [&](const char* name) {
    std::vector<double> out;
    std::ifstream rows(here / name / "metrics.jsonl");
    for (std::string line; std::getline(rows, line);)
      if (const json::object row = json::parse(line).as_object(); row.contains("loss"))
        out.push_back(row.at("loss").to_number<double>());
    return out;
  };
  CHECK(losses("with").size() == 3);
  CHECK(losses("with") == losses("alone"));
}

}  // namespace engine_alone_test
