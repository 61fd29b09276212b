// Advice for relative paths of a configuration that lies in another folder.
#include "sdk/base/files/foreign_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace meshwright;
namespace fs = std::filesystem;
using Help = std::vector<std::string>;

TEST_CASE(
    "a relative path that leads nowhere: the place tried, the current folder, and the setting when "
    "the file lies beside the TOML") {
  fs::path start = fs::current_path(), root = fs::canonical(fs::temp_directory_path()) /
                                              ("relative_" + std::to_string(::getpid()));
  fs::create_directories(root / "here");
  fs::create_directories(root / "jobs" / "data");
  fs::current_path(root / "here");
  for (const char* name : {"a.toml", "model.json", "data/one.txt"})
    std::ofstream(root / "jobs" / name) << "x";
  std::string here = (root / "here").string();
  auto tried = [&](const std::string& path) {
    return "tried " + here + "/" + path + ": relative paths start at the current folder, " + here;
  };

  CHECK(base::relative_path_help("model.config", "model.json", "../jobs/a.toml") ==
        Help{"it lies beside the configuration: set model.config = \"../jobs/model.json\"",
             "or start from that folder: cd ../jobs", tried("model.json")});
  CHECK(base::relative_path_help("dataset.path", "data/*.txt", "../jobs/a.toml") ==
        Help{"it lies beside the configuration: set dataset.path = \"../jobs/data/*.txt\"",
             "or start from that folder: cd ../jobs", tried("data/*.txt")});
  std::string absolute = (root / "jobs/a.toml").string();
  CHECK(base::relative_path_help("model.config", "./model.json", absolute).front() ==
        "it lies beside the configuration: set model.config = \"" +
            (root / "jobs/model.json").string() + "\"");
  // Nothing lies there either; written elsewhere than in a file; the file's folder is the current
  // one.
  CHECK(base::relative_path_help("model.config", "other.json", "../jobs/a.toml") ==
        Help{tried("other.json")});
  CHECK(base::relative_path_help("model.config", "model.json", "") == Help{tried("model.json")});
  CHECK(base::relative_path_help("model.config", "model.json", "b.toml") ==
        Help{tried("model.json")});
  CHECK(base::relative_path_help("model.config", "model.json", here + "/b.toml") ==
        Help{tried("model.json")});
  CHECK(base::relative_path_help("model.config", "/nowhere/model.json", "../jobs/a.toml").empty());
  fs::current_path(start);
  fs::remove_all(root);
}
