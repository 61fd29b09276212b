// `prove` finds what is wrong with checkpoints, and `train --prove` trains nothing that is not
// proven.
#include <filesystem>
#include <string>
#include <vector>

#include "tests/fixtures/folder.h"
#include "tests/prove/said.h"

namespace checkpoint_test {

namespace {

const std::string kMutant = "--set 'plugins.load=[\"" CHECKPOINT_MUTANTS
                            "\"]' --set distributed.strategy=checkpoint_mutants --set "
                            "distributed.checkpoint_mutants.fault=";
// Both layers of the mutants' faults have halves.
const std::string kFile = "configs/first_fsdp2_cpu.toml ";

void check_says(const Said& said, int status, const std::vector<std::string>& all) {
  INFO(said.out);
  CHECK(said.status == status);
  for (const std::string& words : all) {
    CAPTURE(words);
    CHECK(said.out.find(words) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("prove names what a checkpoint has lost, or has elsewhere") {
  struct Case {
    std::string fault;
    std::vector<std::string> says;
  };
  for (const Case& one :
       std::vector<Case>{{"names_swapped",
                          {"checkpoint, in one process", "model.layers.0.mlp.up_proj.weight",
                           "it holds what model.layers.1.mlp.up_proj.weight should",
                           "it holds what exp_avg of model.layers.1.mlp.up_proj.weight should"}},
                         {"loads_more",
                          {"checkpoint, back on ranks",
                           "model.norm.weight, of one process's checkpoint on the "
                           "ranks"}}})
    check_says(meshwright_says("prove " + kFile + kMutant + one.fault), 2, one.says);
}

TEST_CASE("prove names what is wrong with a checkpoint, of every kind" *
          doctest::test_suite("whole")) {
  struct Case {
    std::string fault;
    std::vector<std::string> says;
  };
  for (const Case& one : std::vector<Case>{
           {"parts_swapped",
            {"model.layers.0.mlp.up_proj.weight, of the ranks' checkpoint in one process",
             "row 0 holds what row 7 should; the parts of ranks 0, 1"}},
           {"not_saved", {"the ranks' checkpoint", "nothing can be saved"}},
           {"steps_otherwise",
            {"step after it", "the step after a checkpoint, back on rank 0",
             "every value is as it was saved"}},
           {"mixes_steps",
            {"the ranks' checkpoint has two steps in it",
             "as after step 1, and all else as after step 2"}}})
    check_says(meshwright_says("prove " + kFile + kMutant + one.fault), 2, one.says);
  check_says(meshwright_says("prove " + kFile + kMutant + "none"), 0, {"proven in"});
}

TEST_CASE("prove leaves nothing behind, and says when it has no room for checkpoints") {
  const TemporaryFolder folder;
  const std::string place = "TMPDIR='" + folder.path.string() + "'";
  check_says(meshwright_says("prove " + kFile, place), 0, {"checkpoint, back on ranks"});
  CHECK(std::filesystem::is_empty(folder.path));
  check_says(meshwright_says("prove " + kFile, "TMPDIR='" + folder.path.string() + "/none'"), 0,
             {"not proven: checkpoints", "proven in"});
}

TEST_CASE("train --prove trains what is proven, and nothing else") {
  const TemporaryFolder folder;
  const std::string run = "train " + kFile + "--prove --nproc 2 --set step_scheduler.max_steps=1 " +
                          "--set run.name=first --set run.dir='" + folder.path.string() + "' ";
  check_says(meshwright_says(run + kMutant + "names_swapped"), 2,
             {"on 2 ranks", "it holds what model.layers.1.mlp.up_proj.weight should",
              "nothing was trained"});
  CHECK(std::filesystem::is_empty(folder.path));
  check_says(meshwright_says(run), 0, {"on 2 ranks", "proven in"});
  CHECK(std::filesystem::exists(folder.path / "first" / "metrics.jsonl"));
}

TEST_CASE("train --prove is refused in a rank of a launcher, with what to do") {
  check_says(meshwright_says("train " + kFile + "--prove",
                             "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1"),
             2, {"--prove starts ranks of its own", "help:", "meshwright prove configs/"});
}

}  // namespace checkpoint_test
