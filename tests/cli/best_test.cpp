// checkpoint.best on two ranks: what is saved, linked and remembered.
#include <map>

#include "ran.h"

namespace best_test {

TEST_CASE("the checkpoint of the lowest validation loss is kept over a resumed run") {
  const Folder folder;
  const std::string train =
      "train configs/first_fsdp2_cpu.toml --nproc 2 --set run.dir='" + folder.path.string() +
      "' --set optimizer.lr=0.3 --set lr_scheduler.lr_warmup_steps=0"  // soon gets worse
      " --set validation_dataset.kind=mock --set validation_dataset.seq_len=64"
      " --set validation_dataset.every_steps=2 --set validation_dataset.num_batches=2"
      " --set checkpoint.best=true --set checkpoint.every_steps=3 --set checkpoint.keep=1"
      " --set step_scheduler.max_steps=";
  for (const std::string steps : {"7", "13"}) {
    const Ran ran = run(train + steps, "2>&1");
    INFO(ran.out);
    REQUIRE(ran.status == 0);
    std::map<double, int64_t> found;  // loss: steps done
    std::ifstream metrics(folder.path / "first/metrics.jsonl");
    for (std::string line; std::getline(metrics, line);)
      if (const auto row = boost::json::parse(line).as_object(); row.contains("validation_loss"))
        found.emplace(row.at("validation_loss").to_number<double>(),
                      row.at("step").to_number<int64_t>() + 1);
    REQUIRE(!found.empty());
    const fs::path checkpoints = folder.path / "first/checkpoints";
    std::string name = std::to_string(found.begin()->second);
    name = "step_" + std::string(8 - name.size(), '0') + name;
    CHECK(fs::read_symlink(checkpoints / "best") == name);
    CHECK(fs::exists(checkpoints / name / "meta.json"));
    const Ran listed = run("checkpoint ls '" + checkpoints.string() + "'");
    CHECK(listed.says(", best"));
  }
}

TEST_CASE("a best without validation is refused") {
  check_said("validate configs/first_fsdp2_cpu.toml --set checkpoint.best=true",
             {{"", 2, "validation_dataset.path"}});
}

}  // namespace best_test
