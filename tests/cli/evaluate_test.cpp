// meshwright evaluate, as a user runs it: the run's own validation loss again, every sample once on
// any layout, with the plugins that the run loaded, and what is refused.
#include <cmath>
#include <sstream>

#include "ran.h"

namespace {

std::string job_of(const fs::path& folder, const std::string& strategy, int batch, int steps,
                   const std::string& rest) {
  return "schema = 1\n[run]\nname = \"run\"\ndir = \"" + folder.string() +
         "\"\n[model]\nconfig = \"configs/models/llama-tiny.json\"\n[dist_env]\ndevice = \"cpu\"\n"
         "[distributed]\nstrategy = \"" +
         strategy +
         "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = \"float32\"\n"
         "[step_scheduler]\nlocal_batch_size = 2\nglobal_batch_size = " +
         std::to_string(batch) + "\nmax_steps = " + std::to_string(steps) + "\n" + rest;
}

// The validation losses that a run has written.
std::vector<double> validated(const fs::path& run) {
  std::vector<double> out;
  std::ifstream rows(run / "metrics.jsonl");
  for (std::string line; std::getline(rows, line);)
    if (const json::value row = json::parse(line); row.as_object().contains("validation_loss"))
      out.push_back(number(row.at("validation_loss")));
  return out;
}

// A run of six steps that saved and was validated after two, four and six.
struct Trained : Folder {
  std::string run_path = (path / "run").string();
  Trained() {
    put("job.toml", job_of(path, "fsdp2", 8, 6, R"([checkpoint]
every_steps = 2
keep = 5
[dataset]
kind = "text"
path = "docs/guide.md"
seq_len = 64
[validation_dataset]
kind = "text"
path = "README.md"
seq_len = 64
shuffle = true
every_steps = 2
num_batches = 2
)"));
    REQUIRE(::run("train " + quoted("job.toml") + " --nproc 2").status == 0);
  }
  json::array evaluate(const std::string& arguments) const {
    const Ran ran = ::run("evaluate '" + run_path + "' --json " + arguments);
    REQUIRE(ran.status == 0);
    return json::parse(ran.out).at("evaluations").as_array();
  }
};

double loss_of(const json::array& found) { return found.at(0).at("loss").to_number<double>(); }

}  // namespace

TEST_CASE("evaluate measures any checkpoint of a run, on any layout") {
  static const Trained trained;  // once, for all of these

  SUBCASE("the samples of the run's own validation give the losses that it wrote") {
    const json::array found = trained.evaluate("--all --samples 16");
    const std::vector<double> wrote = validated(trained.run_path);
    REQUIRE(wrote.size() == 3);
    REQUIRE(found.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(found[i].at("step").as_int64() == static_cast<int64_t>(2 * (i + 1)));
      CHECK(found[i].at("loss").to_number<double>() == doctest::Approx(wrote[i]).epsilon(1e-6));
      CHECK(found[i].at("targets").as_int64() == 16 * 64);
    }
  }

  SUBCASE("every sample counts once, however many ranks and samples at a time there are") {
    // An odd number of samples, none of which a layout may count twice.
    const json::array alone = trained.evaluate("--batch 1 --samples 31");
    CHECK(alone[0].at("targets").as_int64() == 31 * 64);
    for (const char* layout :
         {"--nproc 3 --batch 5",
          "--nproc 2 --set distributed.strategy=fsdp2 --set distributed.pp_size=2"}) {
      CAPTURE(layout);
      const json::array found = trained.evaluate(std::string(layout) + " --samples 31");
      CHECK(found[0].at("targets").as_int64() == 31 * 64);
      CHECK(loss_of(found) == doctest::Approx(loss_of(alone)).epsilon(1e-6));
    }
    // Other samples than those, or the test would not see one that is left out.
    CHECK(loss_of(trained.evaluate("--batch 1 --samples 30")) !=
          doctest::Approx(loss_of(alone)).epsilon(1e-6));
  }

  SUBCASE("other data are read as the run read its own") {
    const fs::path text = trained.path / "held_out.txt";
    std::ofstream(text) << "A text of two samples, each of which has sixty-four tokens, one more "
                           "than the second ends with: so it is, or nearly so, and it will do.";
    const json::array found = trained.evaluate("--data '" + text.string() + "'");
    CHECK(found[0].at("targets").as_int64() == 128);
    const Ran table = ::run("evaluate '" + trained.run_path + "' --data '" + text.string() + "'");
    CHECK(table.says("2 samples of 64 tokens, 128 targets"));
    CHECK(table.says("bits a byte"));
    const Ran csv = ::run("evaluate '" + trained.run_path + "' --csv --all --samples 2");
    std::istringstream lines(csv.out);
    std::string line;
    std::getline(lines, line);
    CHECK(line == "path,step,loss,perplexity,targets,seconds");
    int rows = 0;
    while (std::getline(lines, line)) ++rows;
    CHECK(rows == 3);
  }

  SUBCASE("what cannot be measured is refused before a rank starts") {
    const std::string run = "'" + trained.run_path + "' ";
    for (const Said& wrong : std::vector<Said>{
             {"tests/data/nets/llama", 2, "E0101"},
             {"tests/data/nets/llama --data README.md", 7, "E0702"},
             {"tests/data/nets/llama --kind mock --all", 7, "E0712"},
             {run + "--data '/nowhere/*.txt'", 7, "E0701"},
             {run + "--seq-len 1000000", 7, "E0701"},
             {run + "--kind parquet", 2, "there are --kind text, tokens, megatron, mock"},
             {run + "--kind tokenz", 2, "did you mean --kind tokens?"},
             {run + "--json --csv", 2, "E0101"},
             {run + "--set optimizer.lr=1", 2, "E0217"},
             {run + "--set validation_dataset.num_batches=3", 2, "E0217"},
             {run + "--set distributed.tp_size=3 --nproc 2", 3, "E0306"},
             {run + "--data configs/chats/chats.jsonl", 7,
              "--set validation_dataset.plugin=jsonl --set validation_dataset.jsonl.tokenizer="},
             {run + "--data configs/chats/chats.jsonl --set validation_dataset.plugin=jsonl", 7,
              "set validation_dataset.jsonl.tokenizer to a folder with tokenizer.json"}}) {
      CAPTURE(wrong.arguments);
      const Ran ran = ::run("evaluate " + wrong.arguments, "2>&1");
      CHECK(ran.status == wrong.status);
      CHECK(ran.says(wrong.part));
      CHECK_FALSE(ran.says("set model.pretrained"));  // it would be refused
    }
    // The bytes of rows are read where they are asked for.
    CHECK(trained.evaluate("--data configs/chats/chats.jsonl --kind text --samples 2")[0]
              .at("targets")
              .as_int64() == 2 * 64);
  }
}

TEST_CASE("evaluate loads the plugins that the run loaded, by its folder alone") {
  const Folder made;
  const fs::path &folder = made.path, library = folder / "libmeshwright_fixture_numbers.so";
  fs::create_directories(folder / "away");
  fs::copy_file(fs::path(MESHWRIGHT_BUILD_DIR "/fixtures/plugins") / library.filename(), library);
  made.put("job.toml", job_of(folder, "ddp", 4, 2, R"([checkpoint]
every_steps = 2
[dataset]
plugin = "fixture_numbers"
seq_len = 32
[validation_dataset]
plugin = "fixture_numbers"
seq_len = 32
every_steps = 2
num_batches = 10
[validation_dataset.fixture_numbers]
step = 5
[plugins]
load = ["libmeshwright_fixture_numbers.so"]  # from this file's folder
)"));
  const std::string train = "train '" + (folder / "job.toml").string() + "'",
                    evaluate = "evaluate '" + (folder / "run").string() + "' --json ";
  const Ran trained = ::run(train, "2>&1");
  INFO(trained.out);
  REQUIRE(trained.status == 0);
  const std::vector<double> wrote = validated(folder / "run");
  REQUIRE(wrote.size() == 1);
  auto check_measured = [&](const std::string& arguments) {
    CAPTURE(arguments);
    const Ran ran = ::run(evaluate + arguments);
    REQUIRE(ran.status == 0);
    const json::array found = json::parse(ran.out).at("evaluations").as_array();
    CHECK(found.at(0).at("targets").as_int64() == 40 * 32);  // all of the fixture's samples
    CHECK(loss_of(found) == doctest::Approx(wrote[0]).epsilon(1e-6));
  };
  check_measured("");
  check_measured("--all --nproc 2");

  // Gone: as train says it, at its place in what the run has kept.
  const fs::path moved = folder / "away" / library.filename();
  fs::rename(library, moved);
  const Ran refused = ::run(train, "2>&1"),
            gone = ::run("evaluate '" + (folder / "run").string() + "'", "2>&1");
  INFO(refused.out);
  INFO(gone.out);
  CHECK(gone.status == refused.status);
  for (const Ran& ran : {refused, gone})
    CHECK(ran.says("error[E0420]: cannot read the plugin " + library.string()));
  CHECK(gone.says((folder / "run/config.resolved.toml:").string()));
  check_measured("--set 'plugins.load=[\"" + moved.string() + "\"]'");
  // Other data need no plugin.
  const Ran without =
      ::run(evaluate + "--set 'plugins.load=[]' --data README.md --kind text --samples 2");
  CHECK(without.status == 0);
}
