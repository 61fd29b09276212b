// The file of a model that a configuration names.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "engine/config/config.h"

using namespace meshwright;
using namespace meshwright::config;

namespace fs = std::filesystem;

namespace {

fs::path file_of(const std::string& set) {
  Diagnostics diagnostics;
  LoadOptions options;
  options.sets = {set};
  Source source = Source::parse("", options, diagnostics);
  Config config = resolve(source, {}, "", diagnostics);
  diagnostics.throw_if_any();
  return model_config_file(config.table("model"));
}

}  // namespace

TEST_CASE("[model] names a config.json, or the folder that it lies in") {
  const std::string folder = fs::temp_directory_path().string();
  CHECK(file_of("model.config=a/b.json") == "a/b.json");
  CHECK(file_of("model.config=" + folder) == fs::path(folder) / "config.json");
  CHECK(file_of("model.pretrained=" + folder) == fs::path(folder) / "config.json");
  CHECK(file_of("model.pretrained=/nowhere/model") == "/nowhere/model");
  CHECK(file_of("run.name=x").empty());
}
