// What a run of the program says when it has nothing left to do, and when it would go on as
// something else.
#include "engine/train/run/resume.h"
#include "engine/train/preflight/same_run.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/tests/make_checkpoint.h"
#include "engine/config/config.h"

namespace resume_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

Options lora_of(const std::string& keys) {
  Diagnostics diagnostics;
  const config::Source source = config::Source::parse(
      "[lora]\n" + keys, {.file = "job.toml", .sets = {}, .environment = {}}, diagnostics);
  const config::Config config = config::resolve(source, {}, "", diagnostics);
  REQUIRE(diagnostics.ok());
  return config.table("lora");
}

// The key of the refusal and its first help; "": none.
// `config`: of the job's own adapters.
std::string refusal_of_scale(checkpoint::Checkpoint& from, const std::string& keys,
                             const std::string& config = "") {
  try {
    before::check_scale(from, lora_of(keys), config);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::checkpoint_mismatch);
    return error.key() + ": " + error.helps().at(0);
  }
  return "";
}

}  // namespace

TEST_CASE("a finished run names the program as it was called") {
  auto last_line = [](const std::string& command) {
    std::string text = train::finished_text("runs/a/checkpoints/step_00000010", 10, 8, command);
    CHECK(text.find("this run is finished: runs/a/checkpoints/step_00000010 has 10 steps, "
                    "step_scheduler.max_steps is 8\n") == 0);
    CHECK(text.find("  --set step_scheduler.max_steps=20   to train on\n") != std::string::npos);
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  const std::string rest = " generate runs/a/checkpoints/step_00000010   to let it write\n";
  CHECK(last_line("build/bin/meshwright train a.toml") == "  build/bin/meshwright" + rest);
  CHECK(last_line("'/opt/my tools/meshwright' train 'a b.toml'") ==
        "  '/opt/my tools/meshwright'" + rest);
  CHECK(last_line("'it'\\''s here/meshwright' train a.toml") ==
        "  'it'\\''s here/meshwright'" + rest);
  CHECK(last_line("") == "  meshwright" + rest);  // a rank of another launcher
  const std::string epochs =
      train::finished_text("runs/a/checkpoints/step_00000010", 10, 10, "", 2);
  CHECK(epochs.find(" has 10 steps, step_scheduler.epochs = 2 is 10\n") != std::string::npos);
  CHECK(epochs.find("  --set step_scheduler.epochs=4 ") != std::string::npos);
}

TEST_CASE("a save that lacks what it reads ends as saves that fail, not as a wrong configuration") {
  const Error error =
      train::unsaved(Error(ErrorCode::file_unreadable, "there is no folder of their model: gone")
                         .help("put it back"),
                     false, "runs/a/checkpoints");
  CHECK(exit_status(error.code()) == 7);
  CHECK(error.message() == "there is no folder of their model: gone");
  CHECK(error.helps() == std::vector<std::string>{"put it back"});
}

TEST_CASE("adapters go on with the scale that they were trained with") {
  const fs::path folder =
      fs::temp_directory_path() / ("meshwright_resume_" + std::to_string(::getpid()));
  fs::remove_all(folder);
  checkpoint::make_checkpoint(folder / "adapters", 1, {}, checkpoint::Layout::rows,
                              {{std::string(checkpoint::kAdapterConfig),
                                R"({"r": 4, "lora_alpha": 6.5, "use_rslora": true,
                                    "alpha_pattern": {"q_proj": 2}})"}});
  checkpoint::make_checkpoint(folder / "whole", 1, {}, checkpoint::Layout::rows);
  checkpoint::Checkpoint adapters(folder / "adapters"), whole(folder / "whole");
  CHECK(refusal_of_scale(adapters, "r = 4\nalpha = 6.5\nrslora = true\n") == "");
  CHECK(refusal_of_scale(adapters, "r = 4\nalpha = 6.5\nrslora = true\n",
                         R"({"r": 4, "lora_alpha": 6.5, "alpha_pattern": {"q_proj": 2.0}})") == "");
  CHECK(refusal_of_scale(adapters, "r = 4\nalpha = 6.5\nrslora = true\n",
                         R"({"r": 4, "lora_alpha": 6.5, "alpha_pattern": {}})") ==
        "lora.alpha_pattern: set lora.alpha_pattern = {\"q_proj\" = \"2\"}");
  CHECK(
      refusal_of_scale(
          adapters, "r = 4\nalpha = 6.5\nrslora = true\n",
          R"({"r": 4, "lora_alpha": 6.5, "alpha_pattern": {"q_proj": 2}, "rank_pattern": {"v": 1}})") ==
      "lora.rank_pattern: set lora.rank_pattern = {}");
  CHECK(refusal_of_scale(adapters, "r = 4\nalpha = 6\nrslora = true\n") ==
        "lora.alpha: set lora.alpha = 6.5");
  CHECK(refusal_of_scale(adapters, "r = 4\nalpha = 6.5\n") ==
        "lora.rslora: set lora.rslora = true");
  CHECK(refusal_of_scale(adapters, "r = 8\nalpha = 6.5\nrslora = true\n") ==
        "lora.r: set lora.r = 4");
  // That these are other models is told by their parameters.
  CHECK(refusal_of_scale(adapters, "r = 0\n") == "");
  CHECK(refusal_of_scale(whole, "r = 4\n") == "");
  // Adapters alone are no folder that model.pretrained could name.
  CHECK(before::way_by_export(adapters).find(
            "adapters --merged --out DIR, then model.pretrained") != std::string::npos);
  CHECK(before::way_by_export(whole).find("whole --out DIR, then model.pretrained") !=
        std::string::npos);
  fs::remove_all(folder);
}

}  // namespace resume_test
