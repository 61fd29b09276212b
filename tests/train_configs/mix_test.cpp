// A mix of two kinds of data trains alike on any number of ranks, and goes on exactly from every
// step, also by other weights; what it has read is told to the last sample.
#include <map>

#include "trained.h"

namespace mix_test {

const std::string kJob =
    "configs/mix_cpu.toml --set model.config=tests/data/parity/llama/config.json --set "
    "dataset.seq_len=16 --set validation_dataset.seq_len=16 --set "
    "validation_dataset.num_batches=1 --set validation_dataset.every_steps=4 --set "
    "step_scheduler.global_batch_size=12 --set step_scheduler.local_batch_size=2 --set "
    "step_scheduler.max_steps=8 --set checkpoint.every_steps=1 --set checkpoint.keep=8 ";

// Text, and tokens that llm.c would write; the weights change at step 3.
std::string mix(const std::string& weights = "0.75", const std::string& more = "") {
  return "--set 'dataset.mix=[{name = \"story\", path = \"configs/texts/alice.txt\", weight = " +
         weights +
         ", schedule = { 3 = 0.25 }}, {name = \"ids\", kind = \"tokens\", dtype = \"uint16\", path "
         "= \"tests/data/parity/train.bin\", weight = 0.25, schedule = { 3 = 0.75 }}" +
         more + "]' ";
}

struct Row {
  double loss = 0;
  std::map<std::string, int64_t> samples, tokens, targets;
  std::map<std::string, double> losses;  // of those that the step had a target of
};

// What the sources have of the loss is the loss.
void check_sum(const Row& row) {
  double sum = 0, targets = 0;
  for (const auto& [source, loss] : row.losses) {
    sum += loss * static_cast<double>(row.targets.at(source));
    targets += static_cast<double>(row.targets.at(source));
  }
  CHECK(sum / targets == doctest::Approx(row.loss).epsilon(1e-6));
}

void check_alike(const Row& row, const Row& other) {
  CHECK(row.samples == other.samples);
  CHECK(row.targets == other.targets);
  REQUIRE(row.losses.size() == other.losses.size());
  for (const auto& [source, loss] : row.losses) {
    CAPTURE(source);
    CHECK(loss == doctest::Approx(other.losses.at(source)).epsilon(2e-6));
  }
}

std::map<int64_t, Row> rows_of(const std::string& name) {
  std::map<int64_t, Row> out;
  std::ifstream metrics(kRuns + "/" + name + "/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const json::object row = json::parse(line).as_object();
    if (!row.contains("loss")) continue;
    Row& here = out[row.at("step").as_int64()];
    here.loss = row.at("loss").to_number<double>();
    for (const auto& [source, count] : row.at("source_samples").as_object())
      here.samples[source] = count.as_int64();
    for (const auto& [source, count] : row.at("source_tokens").as_object())
      here.tokens[source] = count.as_int64();
    for (const auto& [source, count] : row.at("source_target_tokens").as_object())
      here.targets[source] = count.as_int64();
    for (const auto& [source, loss] : row.at("source_losses").as_object())
      if (!loss.is_null()) here.losses[source] = loss.to_number<double>();
  }
  return out;
}

// Made once.
const Trained& whole() {
  static const Trained made = train(kJob + mix() + "--nproc 2", "mix_whole");
  return made;
}

TEST_CASE("mix: two kinds train alike on one, two and three ranks, and count what they read") {
  const Trained& two = whole();
  INFO(two.out);
  REQUIRE(two.status == 0);
  REQUIRE(two.losses.size() == 8);
  CHECK(two.out.find("data: a mix of story 75%, ids 25%") != std::string::npos);
  CHECK(two.out.find("story: 75%, ") != std::string::npos);
  CHECK(two.out.find("(story ") != std::string::npos);  // a validation loss of its own
  const std::map<int64_t, Row> rows = rows_of("mix_whole");
  for (const auto& [step, row] : rows) {
    CHECK(row.samples.at("story") + row.samples.at("ids") == 12 * (step + 1));
    CHECK(row.tokens.at("story") == 16 * row.samples.at("story"));
    const std::map<std::string, int64_t> before =
        step == 0 ? std::map<std::string, int64_t>() : rows.at(step - 1).samples;
    for (const auto& [source, samples] : row.samples)
      CHECK(row.targets.at(source) == 16 * (samples - (before.empty() ? 0 : before.at(source))));
    check_sum(row);
  }
  const double story = rows.at(0).losses.at("story"), ids = rows.at(0).losses.at("ids");
  CHECK(story != doctest::Approx(ids).epsilon(1e-4));
  CHECK(two.out.find("  (story ") != std::string::npos);  // beside the loss of the step
  // 36 samples at three quarters, and 60 at one; each within what a block may be off.
  CHECK(rows.at(7).samples.at("story") == doctest::Approx(42).epsilon(0.3));
  for (const char* layout :
       {"--nproc 1 --set distributed.strategy=ddp", "--nproc 3 --set distributed.strategy=ddp",
        "--nproc 3 --set dataset.workers=2",
        "--nproc 4 --set distributed.dp_replicate_size=2 --set step_scheduler.local_batch_size=3",
        "--nproc 4 --set distributed.tp_size=2 --set distributed.sequence_parallel=true",
        "--nproc 2 --set distributed.cp_size=2",
        "--nproc 4 --set distributed.pp_size=2 --set distributed.pipeline.pp_microbatch_size=3 "
        "--set step_scheduler.local_batch_size=6",
        "--nproc 1 --set step_scheduler.local_batch_size=1"}) {
    INFO(std::string(layout));
    const Trained run = train(kJob + mix() + layout, "mix_other");
    INFO(run.out);
    REQUIRE(run.status == 0);
    check_equal(run.losses, two.losses);
    check_equal(run.validation, two.validation);
    for (const auto& [step, row] : rows_of("mix_other")) {
      check_alike(row, rows.at(step));
      check_sum(row);
    }
  }
}

TEST_CASE("mix: a run goes on from every step as if nothing had been, on other ranks, too") {
  REQUIRE(whole().status == 0);
  const std::map<int64_t, Row> rows = rows_of("mix_whole");
  for (int step = 1; step < 8; ++step) {
    CAPTURE(step);
    const std::string from = " --set checkpoint.resume='" + kRuns +
                             "/mix_whole/checkpoints/step_0000000" + std::to_string(step) + "'";
    const std::string ranks = step % 2 == 0 ? "--nproc 2" : "--nproc 3";
    const Trained run = train(kJob + mix() + ranks + from, "mix_on");
    INFO(run.out);
    REQUIRE(run.status == 0);
    CHECK(run.out.find("goes on by other weights") == std::string::npos);
    const std::map<int64_t, Row> on = rows_of("mix_on");
    CHECK(on.size() == static_cast<size_t>(8 - step));
    for (const auto& [at, row] : on) {
      check_alike(row, rows.at(at));
      CHECK(row.loss == doctest::Approx(rows.at(at).loss).epsilon(1e-5));
    }
  }
}

TEST_CASE("mix: other weights and a source more are told, and what was read stays read") {
  REQUIRE(whole().status == 0);
  const std::map<int64_t, int64_t> none;
  const std::string from =
      " --set checkpoint.resume='" + kRuns + "/mix_whole/checkpoints/step_00000002'";
  const std::string changed =
      mix("0.5",
          ", {name = \"more\", path = \"configs/texts/README.md\", weight = 0.25, schedule "
          "= { 3 = 1 }}");
  const Trained run =
      train(kJob + changed + "--nproc 2 --set checkpoint.every_steps=2" + from, "mix_changed");
  INFO(run.out);
  REQUIRE(run.status == 0);
  CHECK(run.out.find("\"none\"") == std::string::npos);  // what nobody set is not shown
  CHECK(run.out.find("[[dataset.mix]] goes on by other weights: story 50% (was 75%, ") !=
        std::string::npos);
  CHECK(run.out.find("more 25% (was 0%, 0 samples read)") != std::string::npos);
  std::map<int64_t, Row> rows = rows_of("mix_changed"), before = rows_of("mix_whole");
  const std::map<std::string, int64_t>&then = before.at(1).samples, &now = rows.at(7).samples;
  CHECK(now.at("story") > then.at("story"));
  CHECK(now.at("more") == doctest::Approx(3 + 30).epsilon(0.3));
  CHECK(now.at("story") + now.at("ids") + now.at("more") == 96);
  // Broken off behind the change, on other ranks.
  const Trained again = train(kJob + changed + "--nproc 3 --set checkpoint.resume='" + kRuns +
                                  "/mix_changed/checkpoints/step_00000004'",
                              "mix_changed_on");
  INFO(again.out);
  REQUIRE(again.status == 0);
  for (const auto& [step, row] : rows_of("mix_changed_on")) {
    CHECK(row.samples == rows.at(step).samples);
    CHECK(row.loss == doctest::Approx(rows.at(step).loss).epsilon(1e-5));
  }
}

TEST_CASE("mix: a source that changed, or is gone, is refused by its name") {
  REQUIRE(whole().status == 0);
  const std::string from =
      "--nproc 2 --set checkpoint.resume='" + kRuns + "/mix_whole/checkpoints/step_00000002' ";
  struct Case {
    std::string list, said;
  };
  for (const Case& one : std::vector<Case>{
           {"[{name = \"story\", path = \"configs/texts/alice.txt\"}]", "\"ids\""},
           {"[{name = \"story\", path = \"configs/texts/README.md\"}, {name = \"ids\", kind = "
            "\"tokens\", dtype = \"uint16\", path = \"tests/data/parity/train.bin\"}]",
            "\"story\""}}) {
    const Trained run = train(kJob + "--set 'dataset.mix=" + one.list + "' " + from, "mix_refused");
    INFO(run.out);
    CHECK(run.status != 0);
    CHECK(run.out.find("[[dataset.mix]]") != std::string::npos);
    CHECK(run.out.find(one.said) != std::string::npos);
    CHECK(rows_of("mix_refused").empty());
  }
}

TEST_CASE("mix: plan, validate, dataset and report show each source") {
  REQUIRE(whole().status == 0);
  for (const std::string verb : {"plan", "validate", "dataset stats"}) {
    int status = 1;
    const std::string out = said(verb + " " + kJob + mix(), &status);
    INFO(out);
    CHECK(status == 0);
    CHECK(out.find("story: 75%, ") != std::string::npos);
    CHECK(out.find("ids: 25%, ") != std::string::npos);
    CHECK(out.find(" epochs") != std::string::npos);
  }
  const std::string shown = said("dataset show " + kJob + mix() + "--sample 3");
  CHECK(shown.find(", of ") != std::string::npos);
  const std::string of_ids = said("dataset show " + kJob + mix() + "--sample 3 --source ids");
  CHECK(of_ids.find("sample 3 of ") != std::string::npos);
  CHECK(said("dataset show " + kJob + mix() + "--sample 3 --source none").find("--source story") !=
        std::string::npos);
  const json::value report = json::parse(said("report '" + kRuns + "/mix_whole' --json"));
  const json::object& run = report.at("runs").at(0).as_object();
  CHECK(run.at("sources").at("story").at("samples") ==
        rows_of("mix_whole").at(7).samples.at("story"));
  CHECK(run.at("validation_losses").as_object().size() == 2);
  const std::string text = said("report '" + kRuns + "/mix_whole' --text");
  CHECK(text.find("What was read of each source") != std::string::npos);
  CHECK(text.find("last loss") != std::string::npos);
  CHECK(run.at("sources").at("story").at("loss").to_number<double>() ==
        rows_of("mix_whole").at(7).losses.at("story"));
}

}  // namespace mix_test
