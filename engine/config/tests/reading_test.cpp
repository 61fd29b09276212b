// A configuration that is read once, the model that it names, and configurations beside each other.
#include "engine/config/reading.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/config/tests/loaded.h"

namespace reading_test {

using namespace meshwright;
using namespace meshwright::config;
using namespace meshwright::config::testing;
namespace fs = std::filesystem;

TEST_CASE(
    "a reading stays what it was, here and as bytes, whatever its file and variables become") {
  const fs::path file =
      fs::temp_directory_path() / ("reading_" + std::to_string(::getpid()) + ".toml");
  std::ofstream(file) << "[run]\nname = \"${NAME}-${NONE:-x}\"\nseed = 3\n";
  std::string name = "one:7";
  LoadOptions options;
  options.file = file;
  options.sets = {"run.dir=\"a=b\"", "optimizer.lr=0.5"};
  options.environment = [&](const std::string& asked) {
    return asked == "NAME" ? std::optional(name) : std::nullopt;
  };
  const Reading reading(options);
  auto loaded = [](const Reading& from) {
    Diagnostics found;
    const Config config = resolve(from.source({}, found), {}, "", found);
    return config.table("run").get_string("name") + " " +
           std::to_string(config.table("run").get_int("seed")) + " " +
           config.table("run").get_string("dir") + " " +
           std::to_string(config.table("optimizer").get_number("lr"));
  };
  const std::string first = loaded(reading);
  CHECK(first.find("-x 3 a=b 0.5") != std::string::npos);
  std::ofstream(file) << "[run]\nseed = 4\n";
  name = "two";
  CHECK(loaded(reading) == first);
  fs::remove(file);
  const Reading handed = Reading::of(reading.bytes());
  CHECK(loaded(handed) == first);
  CHECK_THROWS_AS(Reading::of(reading.bytes().substr(0, 20)), Error);
}

TEST_CASE("[model] names a config.json, or the folder that it lies in") {
  auto file_of = [](const std::string& set) {
    return model_config_file(load("", {set}).config.table("model"));
  };
  const std::string folder = fs::temp_directory_path().string();
  CHECK(file_of("model.config=a/b.json") == "a/b.json");
  CHECK(file_of("model.config=" + folder) == fs::path(folder) / "config.json");
  CHECK(file_of("model.pretrained=" + folder) == fs::path(folder) / "config.json");
  CHECK(file_of("model.pretrained=/nowhere/model") == "/nowhere/model");
  CHECK(file_of("run.name=x").empty());
}

TEST_CASE("the path of the model comes with the key that says it") {
  auto said = [](const std::vector<std::string>& sets) {
    const ModelPath found = model_path(load("", sets).config.table("model"));
    return found.key + " " + found.path;
  };
  CHECK(said({"model.config=a/b.json"}) == "config a/b.json");
  CHECK(said({"model.pretrained=c"}) == "pretrained c");
  CHECK(model_path(load("").config.table("model")).path.empty());
}

TEST_CASE("configurations beside each other: what differs, key by key, and what is not there") {
  Diagnostics diagnostics;
  const auto a = settings_of("seed = 1\n[a]\nx = 1  # why\nlist = [1, 2]\n[a.b]\ny = \"z\"\n", "a",
                             diagnostics),
             b = settings_of("seed = 1\n[a]\nx = 2\n[a.b]\ny = \"z\"\n", "b", diagnostics);
  REQUIRE(diagnostics.ok());
  CHECK(a == std::vector<Setting>{
                 {"seed", "1"}, {"a.x", "1"}, {"a.list", "[1, 2]"}, {"a.b.y", "\"z\""}});
  const std::vector<Difference> found = differences({a, b});
  REQUIRE(found.size() == 2);
  CHECK(found[0].key == "a.x");
  CHECK(found[0].values == std::vector<std::string>{"1", "2"});
  CHECK(found[1].key == "a.list");
  CHECK(found[1].values == std::vector<std::string>{"[1, 2]", ""});
  CHECK(differences({a, a}).empty());
  CHECK(settings_of("[a\n", "c", diagnostics).empty());
  CHECK(!diagnostics.ok());
}

TEST_CASE("a key that one side alone has counts where it changes something") {
  Diagnostics diagnostics;
  const Config config = load("").config;
  const auto before = settings_of(
                 "[distributed]\nstrategy = \"fsdp2\"\n[distributed.other]\ndepth = 3\n"
                 "[distributed.pipeline]\npp_schedule = \"GPipe\"\npp_microbatch_size = 1\n"
                 "[dataset.theirs]\nformat = \"text\"\n",
                 "a", diagnostics),
             after = settings_of(
                 "[distributed]\nstrategy = \"ddp\"\n[distributed.moe]\nwrap_outer_model = "
                 "false\nlm_head_precision = \"none\"\n[optimizer]\nmomentum = 0.0\n"
                 "group = [{pattern = \"a\"}]\n",
                 "b", diagnostics);
  std::vector<std::string> keys;
  for (const Difference& one : with_effect(differences({before, after}), config))
    keys.push_back(one.key);
  CHECK(keys == std::vector<std::string>{"distributed.strategy", "distributed.pipeline.pp_schedule",
                                         "distributed.moe.wrap_outer_model", "optimizer.group"});
}

TEST_CASE("the text of a setting's value: a string, whatever its quotes, and nothing else") {
  struct Row {
    const char* value;
    std::optional<std::string> text;
  };
  for (const Row& row : std::vector<Row>{
           {"\"runs/first\"", "runs/first"},
           {"\"\"", ""},
           {"\"none\"", "none"},  // what that means is the key's
           {R"("a \"b\" \\ c\td\u00e9")", "a \"b\" \\ c\td\u00e9"},
           {R"('C:\new')", "C:\\new"},
           {"1", std::nullopt},
           {"0.5", std::nullopt},
           {"true", std::nullopt},
           {"1979-05-27", std::nullopt},
           {"[\"a\", \"b\"]", std::nullopt},
           {"{x = \"a\"}", std::nullopt},
           {"", std::nullopt},
           {"bare", std::nullopt},
           {"\"not closed", std::nullopt},
           {"\"a\" \"b\"", std::nullopt},
       }) {
    CAPTURE(row.value);
    CHECK(text_of(row.value) == row.text);
  }
  // As settings_of() gives them.
  Diagnostics diagnostics;
  const auto all = settings_of("path = 'a \"b\" \\'\n", "a", diagnostics);
  REQUIRE(all.size() == 1);
  CHECK(text_of(all[0].value) == "a \"b\" \\");
}

}  // namespace reading_test
