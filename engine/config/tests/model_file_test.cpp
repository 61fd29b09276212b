// The file of a model that a configuration names.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/config/config.h"

using namespace meshwright;
using namespace meshwright::config;

namespace fs = std::filesystem;

namespace {

Options model_table(const std::vector<std::string>& sets) {
  Diagnostics diagnostics;
  LoadOptions options;
  options.sets = sets;
  Source source = Source::parse("", options, diagnostics);
  Config config = resolve(source, {}, "", diagnostics);
  diagnostics.throw_if_any();
  return config.table("model");
}

fs::path file_of(const std::string& set) { return model_config_file(model_table({set})); }

}  // namespace

TEST_CASE("[model] names a config.json, or the folder that it lies in") {
  const std::string folder = fs::temp_directory_path().string();
  CHECK(file_of("model.config=a/b.json") == "a/b.json");
  CHECK(file_of("model.config=" + folder) == fs::path(folder) / "config.json");
  CHECK(file_of("model.pretrained=" + folder) == fs::path(folder) / "config.json");
  CHECK(file_of("model.pretrained=/nowhere/model") == "/nowhere/model");
  CHECK(file_of("run.name=x").empty());
}

TEST_CASE("the path of the model comes with the key that says it") {
  auto said = [](const std::vector<std::string>& sets) {
    const ModelPath found = model_path(model_table(sets));
    return found.key + " " + found.path;
  };
  CHECK(said({"model.config=a/b.json"}) == "config a/b.json");
  CHECK(said({"model.pretrained=c"}) == "pretrained c");
  CHECK(model_path(model_table({})).path.empty());
}
