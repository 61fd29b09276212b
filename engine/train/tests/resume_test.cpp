// What a run of the program says when it has nothing left to do.
#include "engine/train/resume.h"

#include <doctest/doctest.h>

namespace resume_test {

using namespace meshwright;

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

}  // namespace resume_test
