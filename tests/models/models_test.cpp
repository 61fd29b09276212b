// Jobs with a model that a plugin brings, from plan to export, as a user starts them.
#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/ran.h"
#include "tests/contents.h"

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

const fs::path kFolder = MESHWRIGHT_BUILD_DIR "/models_runs";

std::string plugin(const std::string& name, const std::string& folder = "") {
  return " --set 'plugins.load=[\"" MESHWRIGHT_BUILD_DIR "/fixtures/" +
         (folder.empty() ? name : folder) + "/libmeshwright_" + name + ".so\"]'";
}

// The job of an example; the model's files are named from the project's folder.
std::string job(const std::string& example) {
  return "examples/" + example + "/job.toml" + plugin(example) +
         (example == "gpt2" ? " --set model.config=examples/gpt2/model.json" : "") +
         " --set run.threads=1 --set run.dir=" + kFolder.string();
}

struct Trained : Ran {
  std::vector<double> losses, validation;
};

Trained train(const std::string& example, const std::string& name, const std::string& more) {
  Trained out{
      run("train " + job(example) + " --set run.name=" + name + " " + more, "2>&1"), {}, {}};
  std::ifstream rows(kFolder / name / "metrics.jsonl");
  for (std::string line; std::getline(rows, line);) {
    const json::object row = json::parse(line).as_object();
    if (row.contains("loss")) out.losses.push_back(row.at("loss").to_number<double>());
    if (row.contains("validation_loss"))
      out.validation.push_back(row.at("validation_loss").to_number<double>());
  }
  return out;
}

// A run that ends so, and what it says.
void check_ran(const Ran& ran, int status, const std::vector<std::string>& said = {}) {
  INFO(ran.out);
  REQUIRE(ran.status == status);
  for (const std::string& part : said) CHECK_MESSAGE(ran.out.find(part) != std::string::npos, part);
}

void check_alike(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-5));
}

// A run that is continued with more steps has the same rates.
const std::string kConstant = "--set lr_scheduler.lr_decay_style=constant ";

struct Layout {
  int ranks;
  std::string sets;
};

}  // namespace

// The kit, which is run on both below, trains them on every axis.
TEST_CASE("a plugin's models train alike under every strategy") {
  const std::string steps =
      " --set step_scheduler.max_steps=6 --set validation_dataset.kind=mock"
      " --set validation_dataset.seq_len=32 --set validation_dataset.num_batches=1"
      " --set validation_dataset.every_steps=3";
  for (const std::string example : {"gpt2", "encoder"}) {
    fs::remove_all(kFolder);
    const Trained one = train(example, "one", "--set distributed.strategy=ddp" + steps);
    check_ran(one, 0);
    REQUIRE(one.losses.size() == 6);
    CHECK(one.validation.size() == 2);
    CHECK(one.losses[5] < one.losses[0]);
    std::vector<Layout> layouts = {{2, "--set distributed.strategy=megatron_fsdp"},
                                   {2, "--set distributed.strategy=moe_ep"}};
    if (example == "gpt2")
      layouts = {{2, "--set distributed.strategy=ddp"},
                 {4,
                  "--set distributed.pp_size=2 --set distributed.tp_size=2"
                  " --set distributed.sequence_parallel=true"}};
    int number = 0;
    for (const Layout& layout : layouts) {
      const std::string name = "layout_" + std::to_string(number++);
      const Trained many = train(
          example, name, "--nproc " + std::to_string(layout.ranks) + " " + layout.sets + steps);
      INFO(example << " " << layout.ranks << " " << layout.sets);
      check_ran(many, 0);
      check_alike(many.losses, one.losses);
      check_alike(many.validation, one.validation);
    }
  }
}

TEST_CASE("checkpoints of a plugin's model resume in another layout, export, and generate") {
  fs::remove_all(kFolder);
  const Trained whole =
      train("gpt2", "whole",
            kConstant + "--set step_scheduler.max_steps=6 --set checkpoint.export=final");
  check_ran(whole, 0);
  const std::string part = kConstant + "--set step_scheduler.max_steps=3";
  const std::string last =
      kConstant + "--set step_scheduler.max_steps=6 --set checkpoint.export=final";
  check_ran(train("gpt2", "cut", "--nproc 2 --set distributed.tp_size=2 " + part), 0);
  const Trained rest = train("gpt2", "cut", "--nproc 2 " + last);
  check_ran(rest, 0);
  check_alike(rest.losses, whole.losses);
  // Nobody goes on with another model of the same names and shapes.
  const fs::path other = kFolder / "other.json";
  std::string config = contents(MESHWRIGHT_SOURCE_DIR "/examples/gpt2/model.json");
  config.replace(config.find("gelu_new"), 8, "relu");
  std::ofstream(other) << config;
  check_ran(
      train("gpt2", "cut",
            kConstant + "--set step_scheduler.max_steps=8 --set model.config=" + other.string()),
      7, {other.string() + " has activation_function = \"relu\" (was \"gelu_new\")"});
  // The export is read as it was written: nothing is trained on, and it comes out again.
  const fs::path hf = kFolder / "whole/hf";
  check_ran(run("train examples/gpt2/job.toml" + plugin("gpt2") + " --set run.dir=" +
                    kFolder.string() + " --set run.name=again --set model.config=none" +
                    " --set model.pretrained=" + hf.string() + " --nproc 2" +
                    " --set step_scheduler.max_steps=0 --set checkpoint.export=final",
                "2>&1"),
            0);
  CHECK(contents(kFolder / "again/hf/model.safetensors") == contents(hf / "model.safetensors"));
  // The run says which plugin; a Hugging Face folder does not.
  const std::string words =
      " --tokens 7,11,200 --max-new 8 --temperature 0 --json" + plugin("gpt2");
  check_ran(run("generate " + (kFolder / "whole").string() + " --tokens 7,11", "2>&1"), 2,
            {"its checkpoint says so", "config.resolved.toml of"});
  const Ran of_folder =
      run("generate " + hf.string() + words + " --set 'model.plugin=\"gpt2\"' --nproc 2" +
              " --set distributed.strategy=fsdp2 --set distributed.tp_size=2",
          "2>/dev/null");
  REQUIRE(of_folder.status == 0);
  const Ran of_run = run("generate " + (kFolder / "whole").string() + words);
  REQUIRE(of_run.status == 0);
  CHECK(json::parse(of_folder.out).at("new_ids") == json::parse(of_run.out).at("new_ids"));
  // evaluate loads what the run loaded.
  check_ran(
      run("evaluate " + (kFolder / "whole").string() + " --kind mock --samples 4 --json", "2>&1"),
      0);
  CHECK(run("checkpoint verify " + (kFolder / "cut").string()).status == 0);
}

TEST_CASE("a plugin's model goes on with the options that it was trained with") {
  const auto steps = [](int64_t n) {
    return kConstant + "--set step_scheduler.max_steps=" + std::to_string(n);
  };
  check_ran(train("encoder", "options", steps(1)), 0);
  check_ran(train("encoder", "options", steps(2) + " --set model.encoder.heads=2"), 7,
            {"model.encoder.heads is 2 (was 4)", "set model.encoder.heads = 4"});
  // Written out, a default is the same.
  check_ran(train("encoder", "options", steps(2) + " --set model.encoder.heads=4"), 0);
}

TEST_CASE("what a model cannot do is refused before it starts") {
  fs::remove_all(kFolder);
  check_ran(train("gpt2", "far", "--set dataset.seq_len=129"), 3, {"set dataset.seq_len = 128"});
  check_ran(train("encoder", "cp", "--nproc 2 --set distributed.cp_size=2"), 3,
            {"set distributed.cp_size = 1"});
  // It attends by itself: nothing would keep documents of a sample apart.
  const std::string packed =
      "--set dataset.kind=text --set dataset.path=LICENSE --set dataset.document_end=10 "
      "--set step_scheduler.max_steps=1 --set dataset.packing=";
  check_ran(train("encoder", "documents", packed + "true"), 3,
            {"E0318", "has no attention core", "set dataset.packing = false"});
  for (const auto& [example, packing] : {std::pair("encoder", "false"), {"gpt2", "true"}})
    check_ran(train(example, std::string("documents_of_") + example, packed + packing), 0);
  check_ran(train("encoder", "heads", "--set model.encoder.heads=5"), 2, {"model.encoder.heads"});
  const Ran text = run("generate " + (kFolder / "documents_of_encoder").string() +
                           " --tokens 1,2 --max-new 2" + plugin("encoder"),
                       "2>&1");
  INFO(text.out);
  CHECK(text.status != 0);
  CHECK(text.out.find("does not predict the next token") != std::string::npos);
}

TEST_CASE("a model's faults are told as the plugin's, with method and rank") {
  fs::remove_all(kFolder);
  const std::string more = "train examples/encoder/job.toml" + plugin("fixture_model", "model") +
                           " --set model.plugin=fixture_model --set run.threads=1" +
                           " --set step_scheduler.max_steps=2 --set run.dir=" + kFolder.string();
  check_ran(run(more + " --nproc 2", "2>&1"), 0);
  struct Row {
    std::string fault, said, place;
  };
  for (const Row& row :
       std::vector<Row>{{"throw in outline", "E0421", "in outline"},
                        {"throw in make", "E0421", "in make"},
                        {"throw in forward", "E0421", "in forward"},
                        {"throw in loss_sum", "E0421", "in loss_sum"},
                        {"throw in change_batch", "E0421", "in change_batch"},
                        {"throw in max_positions", "E0421", "in max_positions"},
                        {"other batch", "changed the shape", "change_batch()"},
                        {"wild batch", "E0423", "change_batch() made 256 one of the tokens"},
                        {"wild target batch", "E0423", "change_batch() made -7 one of the targets"},
                        {"no output", "E0423", "gave an undefined tensor"},
                        {"narrow output", "E0423", "whose last size is not that of the vocabulary"},
                        {"no loss", "E0423", "loss_sum() gave an undefined tensor"},
                        {"vector loss", "E0423", "loss_sum() gave [1] of Float"},
                        {"detached loss", "E0423", "a loss without gradients"},
                        {"no width", "E0423", "hidden_size is 0"},
                        {"twice", "E0423", "two parameters are called tokens.weight"},
                        {"wide", "E0423", "tokens.weight has more than 2^48 elements"},
                        {"nan value", "E0423", "the initial value of tokens.weight is nan"},
                        {"no positions", "E0423", "max_positions() is 0"},
                        {"exit", "E0424", "the plugin fixture_model 1.0.0"},
                        {"nothing", "returned nothing", "make()"},
                        {"other shape", "is not what its outline says", "tokens.weight [256, 4]"},
                        {"surplus", "is not what its outline says", "head.bias [256]"}}) {
    const bool first = row.fault == "throw in forward";
    const Ran bad = run(more + " --set run.name=bad --max-restarts 1" + (first ? " --nproc 2" : ""),
                        "2>&1", "FIXTURE_MODEL='" + row.fault + "'");
    INFO(row.fault << "\n" << bad.out);
    CHECK(bad.status != 0);
    CHECK(bad.out.find(row.said) != std::string::npos);
    CHECK(bad.out.find(row.place) != std::string::npos);
    // Whoever reads it knows whose it is, and it is not tried again.
    if (row.said.starts_with("E042"))
      CHECK(bad.out.find("fixture_model 1.0.0") != std::string::npos);
    CHECK(bad.out.find("restart 1") == std::string::npos);
  }
}

TEST_CASE("a model without a config.json is exported, trained on and saved again") {
  fs::remove_all(kFolder);
  const std::string steps = "--set step_scheduler.max_steps=2 --set checkpoint.export=final";
  check_ran(train("encoder", "first", steps), 0);
  const fs::path hf = kFolder / "first/hf";
  CHECK(!fs::exists(hf / "config.json"));
  check_ran(train("encoder", "again", "--set model.pretrained=" + hf.string() + " " + steps), 0);
  CHECK(fs::exists(kFolder / "again/hf/model.safetensors"));
  // What is not there is told before anything starts, whatever the family makes of it.
  for (const std::string key : {"config", "pretrained"}) {
    const Ran bad =
        run("validate " + job("encoder") + " --set model." + key + "=nothere.json", "2>&1");
    INFO(bad.out);
    CHECK(bad.status != 0);
    CHECK(bad.out.find("model." + key) != std::string::npos);
    CHECK(bad.out.find("nothere.json") != std::string::npos);
  }
}

TEST_CASE("the kit passes the examples") {
  check_ran(run("plugins check " MESHWRIGHT_BUILD_DIR
                "/fixtures/gpt2/libmeshwright_gpt2.so --file examples/gpt2/job.toml"
                " --set model.config=examples/gpt2/model.json",
                "2>&1"),
            0, {"9 passed, 0 failed, 0 skipped"});
  check_ran(run("plugins check " MESHWRIGHT_BUILD_DIR "/fixtures/encoder/libmeshwright_encoder.so",
                "2>&1"),
            0,
            {"9 passed, 0 failed, 0 skipped",
             "refused: tp_size = 2 with sequence_parallel (its plan cuts no sequence), cp_size = 2 "
             "by all_gather (E0316)"});
  const Ran none = run("plugins check " MESHWRIGHT_BUILD_DIR
                       "/fixtures/encoder/libmeshwright_encoder.so --case data_read",
                       "2>&1");
  CHECK(none.status != 0);
  CHECK(none.out.find("no case was run") != std::string::npos);
}
