// The length of a run is said once: in steps, or in epochs.
#include <doctest/doctest.h>

#include "engine/config/config.h"
#include "engine/config/describe.h"

using namespace meshwright;
using namespace meshwright::config;

namespace {

Config resolved(const std::vector<std::string>& sets, Diagnostics& diagnostics,
                const std::string& text = "schema = 1\n") {
  LoadOptions options;
  options.file = "job.toml";
  options.sets = sets;
  Source source = Source::parse(text, options, diagnostics);
  return resolve(source, {}, "", diagnostics);
}

}  // namespace

TEST_CASE("steps and epochs of a run are one of the two, and epochs need data that ends") {
  struct Row {
    std::vector<std::string> sets;
    std::string message;
  };
  for (const Row& row : std::vector<Row>{
           {{}, ""},
           {{"step_scheduler.epochs=2"}, ""},
           {{"step_scheduler.epochs=2", "step_scheduler.max_steps=none"}, ""},
           {{"step_scheduler.epochs=none", "step_scheduler.max_steps=9"}, ""},
           {{"step_scheduler.epochs=2", "step_scheduler.max_steps=9"}, "leave out one of them"},
           {{"step_scheduler.max_steps=none"}, "are both \"none\""},
           {{"step_scheduler.epochs=0"}, "step_scheduler.epochs"},
           {{"step_scheduler.max_steps=none", "step_scheduler.epochs=0"},
            "step_scheduler.epochs = 0"},
           {{"step_scheduler.max_steps=none", "step_scheduler.epochs=1.5"},
            "step_scheduler.epochs wants"},
           {{"step_scheduler.epochs=2", "dataset.kind=mock"}, "without an end"}}) {
    INFO((row.sets.empty() ? "defaults" : row.sets.back()));
    Diagnostics diagnostics;
    resolved(row.sets, diagnostics);
    REQUIRE(diagnostics.errors().size() == (row.message.empty() ? 0 : 1));
    if (row.message.empty()) continue;
    const Error& error = diagnostics.errors().front();
    CHECK(error.message().find(row.message) != std::string::npos);
    CHECK(error.key().starts_with("step_scheduler."));
    CHECK(!error.helps().empty());
  }
}

TEST_CASE("what a run in epochs keeps of its configuration is read again") {
  Diagnostics diagnostics;
  const Config before = resolved({"step_scheduler.epochs=2"}, diagnostics);
  CHECK(!before.table("step_scheduler").is_set("max_steps"));
  const Config after = resolved({}, diagnostics, show_toml(before));
  CHECK(diagnostics.ok());
  CHECK(after.table("step_scheduler").find_int("epochs") == 2);
}
