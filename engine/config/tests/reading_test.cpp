// A configuration that is read once.
#include "engine/config/reading.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/config/describe.h"

namespace reading_test {

using namespace meshwright;
namespace fs = std::filesystem;

TEST_CASE(
    "a reading stays what it was, here and as bytes, whatever its file and variables become") {
  const fs::path file =
      fs::temp_directory_path() / ("reading_" + std::to_string(::getpid()) + ".toml");
  std::ofstream(file) << "[run]\nname = \"${NAME}-${NONE:-x}\"\nseed = 3\n";
  std::string name = "one:7";
  config::LoadOptions options;
  options.file = file;
  options.sets = {"run.dir=\"a=b\"", "optimizer.lr=0.5"};
  options.environment = [&](const std::string& asked) {
    return asked == "NAME" ? std::optional(name) : std::nullopt;
  };
  const config::Reading reading(options);
  auto loaded = [](const config::Reading& from) {
    Diagnostics found;
    const config::Config config = config::resolve(from.source({}, found), {}, "", found);
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
  const config::Reading handed = config::Reading::of(reading.bytes());
  CHECK(loaded(handed) == first);
  CHECK_THROWS_AS(config::Reading::of(reading.bytes().substr(0, 20)), Error);
}

}  // namespace reading_test
