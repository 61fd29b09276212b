// What a run is made of is read once: its saves, and the run that goes on with them.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/inspect.h"
#include "engine/config/reading.h"
#include "engine/train/run/run.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"

namespace kept_files_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig =
    R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 16,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "rms_norm_eps": 1e-06})";

struct Place {
  fs::path path =
      fs::canonical(fs::temp_directory_path()) / ("meshwright_kept_" + std::to_string(::getpid()));
  fs::path config = path / "model" / "config.json", tokenizer = path / "model" / "tokenizer.json",
           checkpoints = path / "a" / "checkpoints";
  std::string told;
  Place() {
    fs::remove_all(path);
    fs::create_directories(path / "model");
    write(config, kConfig);
    write(tokenizer, "{\"of\": \"then\"}");
  }
  ~Place() { fs::remove_all(path); }
  void write(const fs::path& file, const std::string& text) const { std::ofstream(file) << text; }
  fs::path at(int64_t step) const { return checkpoints / checkpoint::step_name(step); }

  std::unique_ptr<train::Session> open(const std::vector<std::string>& sets = {}) {
    train::RunOptions options;
    config::LoadOptions load;
    load.sets = sets;
    options.given = std::make_shared<const config::Reading>(
        "schema = 1\n[run]\nname = \"a\"\ndir = \"" + path.string() + "\"\n[model]\nconfig = \"" +
            config.string() +
            "\"\n[distributed]\nstrategy = \"ddp\"\n[step_scheduler]\nglobal_batch_size = "
            "1\nlocal_batch_size = 1\nmax_steps = 8\n[dataset]\nkind = \"mock\"\nseq_len = "
            "8\n[checkpoint]\nevery_steps = 0\n",
        load);
    options.tell = [this](const std::string& line) { told += line + "\n"; };
    return train::open_session(options);
  }
  std::string refusal(const std::vector<std::string>& sets = {}) {
    try {
      open(sets);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::checkpoint_mismatch);
      CHECK(error.key() == "model.config");
      return error.message() + "; " + error.helps().at(0);
    }
    return "";
  }
  // What stands in the checkpoint is what the run began with.
  void check_kept(int64_t step) const {
    CHECK(base::read_file(at(step) / "config.json") == kConfig);
    CHECK(base::read_file(at(step) / "source" / "tokenizer.json") == "{\"of\": \"then\"}");
    CHECK(checkpoint::verify_checkpoint(at(step), [](int64_t) {}).damage.empty());
  }
};

}  // namespace

TEST_CASE("saves write what the run began with, whatever becomes of its files and checkpoints") {
  Place place;
  {
    const std::unique_ptr<train::Session> run = place.open();
    run->train(1, {});
    place.write(place.config, "{\"edited\": true}");
    fs::remove(place.tokenizer);
    run->save();
    place.check_kept(1);
    fs::rename(place.at(1), place.path / "taken");  // the newest is nobody's source
    run->train(1, {});
    run->save();
    place.check_kept(2);
    fs::remove_all(place.checkpoints);
    run->train(1, {});
    run->save();
    place.check_kept(3);
    run->train(1, {});
    run->save();
  }
  // What goes on carries what its checkpoint has, and lets go of that once it is read.
  place.write(place.config, kConfig);
  place.write(place.tokenizer, "{\"of\": \"now\"}");
  const std::unique_ptr<train::Session> run = place.open();
  CHECK(run->next_step() == 4);
  CHECK(base::read_file("/proc/self/maps").find(place.checkpoints.string()) == std::string::npos);
  fs::remove_all(place.at(4));
  run->train(1, {});
  run->save();
  place.check_kept(5);
}

TEST_CASE("a run goes on with a config.json that computes the same, and with no other") {
  Place place;
  {
    const std::unique_ptr<train::Session> run = place.open();
    run->train(1, {});
    run->save();
  }
  const std::string other =
      std::string(kConfig).replace(std::string(kConfig).rfind("1e-06"), 5, "1e-03");
  place.write(place.config, other);
  const std::string from = "checkpoint.resume=" + place.at(1).string();
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{}, {"run.name=b", from}, {from}})
    CHECK(place.refusal(sets) ==
          place.at(1).string() +
              ": it is of a model that computes otherwise: " + place.config.string() +
              " has rms_norm_eps = 0.001 (was 1e-06); set rms_norm_eps to 1e-06 in " +
              place.config.string());
  place.write(place.config, std::string(kConfig).insert(
                                1, "\"transformers_version\": \"9\", \"dtype\": \"half\", "));
  const std::unique_ptr<train::Session> run = place.open({"run.name=b", from});
  CHECK(run->next_step() == 1);
}

}  // namespace kept_files_test
