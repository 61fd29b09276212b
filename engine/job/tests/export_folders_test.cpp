// A run's own export never takes the place of the model that it begins with.
#include "engine/job/trainable.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace export_folders_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

struct Runs {
  fs::path path =
      fs::temp_directory_path() / ("meshwright_export_folders_" + std::to_string(::getpid()));
  Runs() {
    fs::remove_all(path);
    for (const char* name : {"chain/hf", "chain/hf_adapter", "other/hf"}) {
      fs::create_directories(path / name);
      std::ofstream(path / name / "model.safetensors") << "x";
    }
    fs::create_directory_symlink(path / "chain/hf", path / "link");
  }
  ~Runs() { fs::remove_all(path); }
  // The errors of run `chain` that begins with `pretrained`.
  std::vector<Error> errors(const fs::path& pretrained,
                            const std::vector<std::string>& more) const {
    std::vector<std::string> sets{"run.dir=\"" + path.string() + "\"", "run.name=chain",
                                  "model.pretrained=\"" + pretrained.string() + "\""};
    sets.insert(sets.end(), more.begin(), more.end());
    Diagnostics read, found;
    const config::Source source = config::Source::parse(
        "schema = 1\n", {.file = "job.toml", .sets = sets, .environment = {}}, read);
    const config::Config config = config::resolve(source, {}, "", read);
    read.throw_if_any();
    plan::check_exports(config, found);
    return found.errors();
  }
};

}  // namespace

TEST_CASE("an export of a run over the model that it begins with is refused before it trains") {
  const Runs runs;
  const fs::path hf = runs.path / "chain/hf";
  const std::string last = "checkpoint.export=final", r = "lora.r=4";
  for (const fs::path& same :
       {hf, hf / "", runs.path / "link", fs::relative(hf), runs.path / "other/../chain/hf"})
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {last}, {"checkpoint.export=every"}, {last, r}, {last, r, "lora.export=merged"}}) {
      CAPTURE(same.string());
      CAPTURE(more.back());
      const std::vector<Error> errors = runs.errors(same, more);
      REQUIRE(errors.size() == 1);
      CHECK(errors[0].code() == ErrorCode::output_unwritable);
      CHECK(errors[0].key() == "model.pretrained");
      CHECK(errors[0].origin().source == Origin::Source::command_line);
      CHECK(errors[0].message().find("would take away " + same.string()) != std::string::npos);
      CHECK(errors[0].message().ends_with("it replaces " + hf.string()));
    }
  // An export of another form takes these away, too.
  CHECK(runs.errors(runs.path / "chain/hf_adapter", {last}).size() == 1);

  CHECK(runs.errors(hf, {}).empty());
  CHECK(runs.errors(hf, {last, r, "lora.export=none"}).empty());
  CHECK(runs.errors(hf, {last, "lora.export=none"}).size() == 1);  // there are no adapters
  CHECK(runs.errors(runs.path / "other/hf", {last}).empty());
  CHECK(runs.errors(runs.path / "nowhere", {last}).empty());
  // What is told to do works.
  CHECK(runs.errors(hf, {last, "run.name=another"}).empty());
  CHECK(runs.errors(hf, {last, "checkpoint.export=none"}).empty());
}

}  // namespace export_folders_test
