// meshwright evaluate, as a user runs it: the run's own validation loss again, every sample once on
// any layout, with the plugins that the run loaded, and what is refused.
#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "tests/cli/ran.h"

namespace json = boost::json;
namespace fs = std::filesystem;

namespace {

// A run of six steps that saved and was validated after two, four and six.
struct Trained {
  fs::path folder =
      fs::temp_directory_path() / ("meshwright_evaluate_" + std::to_string(::getpid()));
  std::string run_path = (folder / "run").string();
  Trained() {
    fs::create_directories(folder);
    std::ofstream(folder / "job.toml") << R"(schema = 1
[run]
name = "run"
dir = ")" << folder.string() << R"("
[model]
config = "configs/models/llama-tiny.json"
[dist_env]
device = "cpu"
[distributed]
strategy = "fsdp2"
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = 8
local_batch_size = 2
max_steps = 6
[checkpoint]
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
)";
    const Ran ran = ::run("train '" + (folder / "job.toml").string() + "' --nproc 2");
    REQUIRE(ran.status == 0);
  }
  ~Trained() { fs::remove_all(folder); }
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
    std::ifstream rows(trained.folder / "run/metrics.jsonl");
    std::vector<double> wrote;
    for (std::string line; std::getline(rows, line);)
      if (const json::value row = json::parse(line); row.as_object().contains("validation_loss"))
        wrote.push_back(row.at("validation_loss").to_number<double>());
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
    const fs::path text = trained.folder / "held_out.txt";
    std::ofstream(text) << "A text of two samples, each of which has sixty-four tokens, one more "
                           "than the second ends with: so it is, or nearly so, and it will do.";
    const json::array found = trained.evaluate("--data '" + text.string() + "'");
    CHECK(found[0].at("targets").as_int64() == 128);
    const Ran table = ::run("evaluate '" + trained.run_path + "' --data '" + text.string() + "'");
    CHECK(table.out.find("2 samples of 64 tokens, 128 targets") != std::string::npos);
    CHECK(table.out.find("bits a byte") != std::string::npos);
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
    struct Case {
      std::string arguments, says;
      int status;
    };
    const std::string run = "'" + trained.run_path + "' ";
    for (const Case& wrong : std::vector<Case>{
             {"tests/data/nets/llama", "E0101", 2},
             {"tests/data/nets/llama --data README.md", "E0702", 7},
             {"tests/data/nets/llama --kind mock --all", "E0712", 7},
             {run + "--data '/nowhere/*.txt'", "E0701", 7},
             {run + "--seq-len 1000000", "E0701", 7},
             {run + "--kind parquet", "there are --kind text, tokens, megatron, mock", 2},
             {run + "--kind tokenz", "did you mean --kind tokens?", 2},
             {run + "--json --csv", "E0101", 2},
             {run + "--set optimizer.lr=1", "E0217", 2},
             {run + "--set validation_dataset.num_batches=3", "E0217", 2},
             {run + "--set distributed.tp_size=3 --nproc 2", "E0306", 3},
             {run + "--data configs/chats/chats.jsonl",
              "--set validation_dataset.plugin=jsonl --set validation_dataset.jsonl.tokenizer=", 7},
             {run + "--data configs/chats/chats.jsonl --set validation_dataset.plugin=jsonl",
              "set validation_dataset.jsonl.tokenizer to a folder with tokenizer.json", 7}}) {
      CAPTURE(wrong.arguments);
      const Ran ran = ::run("evaluate " + wrong.arguments, "2>&1");
      CHECK(ran.status == wrong.status);
      CHECK(ran.out.find(wrong.says) != std::string::npos);
      CHECK(ran.out.find("set model.pretrained") == std::string::npos);  // it would be refused
    }
    // The bytes of rows are read where they are asked for.
    CHECK(trained.evaluate("--data configs/chats/chats.jsonl --kind text --samples 2")[0]
              .at("targets")
              .as_int64() == 2 * 64);
  }
}

TEST_CASE("evaluate loads the plugins that the run loaded, by its folder alone") {
  const fs::path folder = fs::canonical(fs::temp_directory_path()) /
                          ("meshwright_evaluate_plugins_" + std::to_string(::getpid()));
  const fs::path library = folder / "libmeshwright_fixture_numbers.so";
  fs::remove_all(folder);
  fs::create_directories(folder / "away");
  fs::copy_file(fs::path(MESHWRIGHT_BUILD_DIR "/fixtures/plugins") / library.filename(), library);
  std::ofstream(folder / "job.toml") << R"(schema = 1
[run]
name = "run"
dir = ")" << folder.string() << R"("
[model]
config = "configs/models/llama-tiny.json"
[dist_env]
device = "cpu"
[distributed]
strategy = "ddp"
[distributed.mp_policy]
param_dtype = "float32"
output_dtype = "float32"
[step_scheduler]
global_batch_size = 4
local_batch_size = 2
max_steps = 2
[checkpoint]
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
)";
  const std::string train = "train '" + (folder / "job.toml").string() + "'",
                    evaluate = "evaluate '" + (folder / "run").string() + "' --json ";
  const Ran trained = ::run(train, "2>&1");
  INFO(trained.out);
  REQUIRE(trained.status == 0);
  std::optional<double> wrote;
  std::ifstream rows(folder / "run/metrics.jsonl");
  for (std::string line; std::getline(rows, line);)
    if (const json::value row = json::parse(line); row.as_object().contains("validation_loss"))
      wrote = row.at("validation_loss").to_number<double>();
  REQUIRE(wrote);
  auto check_measured = [&](const std::string& arguments) {
    CAPTURE(arguments);
    const Ran ran = ::run(evaluate + arguments);
    REQUIRE(ran.status == 0);
    const json::array found = json::parse(ran.out).at("evaluations").as_array();
    CHECK(found.at(0).at("targets").as_int64() == 40 * 32);  // all of the fixture's samples
    CHECK(loss_of(found) == doctest::Approx(*wrote).epsilon(1e-6));
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
    CHECK(ran.out.find("error[E0420]: cannot read the plugin " + library.string()) !=
          std::string::npos);
  CHECK(gone.out.find((folder / "run/config.resolved.toml:").string()) != std::string::npos);
  check_measured("--set 'plugins.load=[\"" + moved.string() + "\"]'");
  // Other data need no plugin.
  const Ran without =
      ::run(evaluate + "--set 'plugins.load=[]' --data README.md --kind text --samples 2");
  CHECK(without.status == 0);
  fs::remove_all(folder);
}
