// What a run's validation and evaluate read of small data and of rows: each sample once, with the
// tokenizer that the run had.
#include "ran.h"

namespace evaluate_rows_test {

namespace {

struct Runs : Folder {
  // Of one step; what it printed.
  std::string train(const std::string& config, const std::string& name,
                    const std::string& more) const {
    const Ran ran = run("train configs/" + config + " --set run.name=" + name +
                            " --set 'run.dir=" + path.string() +
                            "' --set step_scheduler.max_steps=1 --set "
                            "lr_scheduler.lr_warmup_steps=1 " +
                            more,
                        "2>&1");
    INFO(ran.out);
    REQUIRE(ran.status == 0);
    return ran.out;
  }
  double validated(const std::string& name) const {
    std::ifstream rows(path / name / "metrics.jsonl");
    for (std::string line; std::getline(rows, line);)
      if (const json::value row = json::parse(line); row.as_object().contains("validation_loss"))
        return row.at("validation_loss").to_number<double>();
    FAIL("the run was not validated");
    return 0;
  }
};

struct Found {
  int64_t samples = 0, targets = 0;
  double loss = 0;
};

Found evaluate(const std::string& arguments) {
  const Ran ran = run("evaluate " + arguments + " --json");
  INFO(arguments, "\n", ran.out);
  REQUIRE(ran.status == 0);
  const json::value found = json::parse(ran.out);
  const json::value& one = found.at("evaluations").as_array().at(0);
  return {found.at("samples").as_int64(), one.at("targets").as_int64(),
          one.at("loss").to_number<double>()};
}

}  // namespace

TEST_CASE("a validation of few samples counts each once, on any layout") {
  const Runs folder;
  // Five samples of 64 tokens, none like another: one that counted twice would show.
  std::string text;
  for (int i = 0; i < 330; ++i)
    text += i < 64 ? 'a' : static_cast<char>('0' + (i * (1 + i / 64)) % 60);
  const std::string held = folder.put("held.txt", text);
  const std::string data =
      " --set step_scheduler.global_batch_size=8 --set step_scheduler.local_batch_size=2 --set "
      "dataset.seq_len=64 --set validation_dataset.kind=text --set validation_dataset.seq_len=64 "
      "--set validation_dataset.num_batches=3 --set validation_dataset.path=" +
      held;
  const std::vector<std::string> layouts = {"--nproc 3", "--nproc 2 --set distributed.pp_size=2"};
  for (size_t i = 0; i < layouts.size(); ++i) {
    CAPTURE(layouts[i]);
    const std::string name = "layout" + std::to_string(i);
    // 8 samples of 3 ranks are no batch.
    const std::string said = folder.train(
        "first_fsdp2_cpu.toml", name,
        layouts[i] + data + (i == 0 ? " --set step_scheduler.global_batch_size=12" : ""));
    CHECK(said.find("330 bytes, 5 samples, each once: fewer than the 3 batches of "
                    "validation_dataset.num_batches") != std::string::npos);
    const Found found = evaluate("'" + (folder.path / name).string() + "'");
    CHECK(found.samples == 5);
    CHECK(found.targets == 5 * 64);
    CHECK(folder.validated(name) == doctest::Approx(found.loss).epsilon(1e-6));
  }
  // Of more samples than are asked for, those: one batch of four.
  const std::string said = folder.train(
      "first_fsdp2_cpu.toml", "some",
      "--nproc 1" + data +
          " --set step_scheduler.global_batch_size=4 --set validation_dataset.num_batches=1");
  CHECK(said.find("330 bytes, 4 of 5 samples\n") != std::string::npos);
  const Found found = evaluate("'" + (folder.path / "some").string() + "' --samples 4");
  CHECK(folder.validated("some") == doctest::Approx(found.loss).epsilon(1e-6));
}

TEST_CASE("other texts are evaluated by the documents of the validation, where it has its own") {
  const Runs folder;
  const std::string held = folder.put("held.txt", "one two\nthree four five\n\nsix seven\n");
  folder.train("text_cpu.toml", "texts",
               "--nproc 1 --set dataset.text.cache=none --set validation_dataset.kind=text --set "
               "validation_dataset.text.documents=line --set validation_dataset.text.packing=none "
               "--set validation_dataset.text.cache=none --set validation_dataset.seq_len=64 --set "
               "validation_dataset.path=" +
                   held);
  const std::string run = "'" + (folder.path / "texts").string() + "'";
  const Found own = evaluate(run), named = evaluate(run + " --data " + held + " --seq-len 64");
  CHECK(own.samples == 3);  // a line each
  CHECK(named.samples == own.samples);
  CHECK(named.targets == own.targets);
  CHECK(named.loss == doctest::Approx(own.loss));
}

TEST_CASE("rows are evaluated with the plugin and the tokenizer that the run read them with") {
  const Runs folder;
  folder.train("chat_tuning_cpu.toml", "first",
               "--nproc 2 --set dataset.jsonl.cache=none --set checkpoint.export=final");
  const fs::path base = folder.path / "first/hf";
  REQUIRE(fs::exists(base / "tokenizer.json"));
  std::string text;
  for (const char* answer : {"one", "two, more or less", "3", "the fourth of them", "5 5 5"})
    text += std::string(R"({"messages": [{"role": "user", "content": "Say it."}, )") +
            R"({"role": "assistant", "content": ")" + answer + "\"}]}\n";
  const std::string rows = folder.put("rows.jsonl", text);
  const std::string jsonl =
      " --set validation_dataset.plugin=jsonl --set validation_dataset.jsonl.cache=none";
  folder.train("chat_tuning_cpu.toml", "tuned",
               "--nproc 2 --set dataset.jsonl.cache=none --set model.config=none --set "
               "dataset.jsonl.tokenizer=none --set model.pretrained=" +
                   base.string() + jsonl + " --set validation_dataset.path=" + rows +
                   " --set validation_dataset.seq_len=128 --set "
                   "validation_dataset.jsonl.packing=none --set validation_dataset.num_batches=3");
  const std::string run_path = "'" + (folder.path / "tuned").string() + "'";
  // Its own validation data, without a word about them; "none" is a choice of packing.
  const Found own = evaluate(run_path);
  CHECK(own.samples == 5);
  CHECK(own.targets > 0);
  CHECK(folder.validated("tuned") == doctest::Approx(own.loss).epsilon(1e-6));
  // Packed as the run packed what it learned from: other samples of the same targets.
  const Found same = evaluate(run_path + " --data " + rows);
  CHECK(same.samples == 1);
  CHECK(same.targets == own.targets);
  CHECK(same.loss == doctest::Approx(own.loss).epsilon(1e-4));
  // Not as bytes: of these there would be more targets.
  const std::string broken = folder.put("broken.jsonl", "{\"messages\": [");
  CHECK(run("evaluate " + run_path + " --data " + broken).status == 7);

  // A Hugging Face folder has its own tokenizer.
  CHECK(evaluate("'" + base.string() + "' --data " + rows + jsonl).targets == own.targets);
  const Ran refused = run("evaluate '" + base.string() + "' --data " + rows, "2>&1");
  CHECK(refused.status == 7);
  CHECK(refused.says("E0701"));
  CHECK(refused.says("the row has no string \"text\""));
  CHECK(refused.says("set validation_dataset.plugin = \"jsonl\""));

  // The base is gone: the checkpoint carries its tokenizer and template along.
  fs::rename(base, folder.path / "away");
  const Found moved = evaluate(run_path);
  CHECK(moved.targets == own.targets);
  CHECK(moved.loss == doctest::Approx(own.loss).epsilon(1e-6));
}

}  // namespace evaluate_rows_test
