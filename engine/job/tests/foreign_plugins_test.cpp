// A run's folder names plugins: what comes with it is data, by whatever way it is named.
#include "engine/job/job.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

#include "engine/config/source.h"
#include "meshwright/error.h"
#include "meshwright/options.h"

namespace foreign_plugins_test {

namespace fs = std::filesystem;
using namespace meshwright;

TEST_CASE("plugins that come with a folder are refused without --trust-plugins, others are told") {
  const fs::path all = fs::canonical(fs::temp_directory_path()) /
                       ("meshwright_foreign_plugins_" + std::to_string(::getpid())),
                 run = all / "run", own = all / "own";
  fs::create_directories(run / "lib");
  fs::create_directories(own);
  fs::create_directories(all / "linked");
  fs::create_directories(all / "clean");
  for (const fs::path& file : {run / "x.so", run / "lib/libmeshwright_x.so", own / "y.so"})
    std::ofstream(file) << "x";
  fs::create_symlink(own / "y.so", run / "out.so");                     // lies inside
  fs::create_symlink(run / "x.so", own / "in.so");                      // leads inside
  fs::create_symlink(run, all / "alias");                               // the folder again
  fs::create_symlink(run / "x.so", all / "linked/libmeshwright_x.so");  // in a folder
  struct Row {
    std::string load, path;
    bool refused = true;
  };
  for (const Row& row : std::vector<Row>{
           {"x.so", ""},
           {"./lib/../x.so", ""},
           {"../own/y.so", ""},
           {(run / "x.so").string(), ""},
           {(run / "../run/x.so").string(), ""},
           {(run / "out.so").string(), ""},
           {(own / "in.so").string(), ""},
           {(all / "alias/x.so").string(), ""},
           {"", "lib"},
           {"", (run / "lib").string()},
           {"", (all / "alias").string()},
           {"", (all / "linked").string()},
           {(own / "y.so").string(), "", false},
           {"", own.string()},  // for in.so
           {"", (all / "clean").string(), false},
       }) {
    CAPTURE(row.load);
    CAPTURE(row.path);
    for (const fs::path& folder : {run, all / "alias"}) {
      std::string text = "schema = 1\n[plugins]\n";
      if (!row.load.empty()) text += "load = [" + to_toml(OptionValue(row.load)) + "]\n";
      if (!row.path.empty()) text += "path = [" + to_toml(OptionValue(row.path)) + "]\n";
      Diagnostics problems;
      config::LoadOptions options;
      options.file = folder / "config.resolved.toml";
      const config::Source source = config::Source::parse(text, options, problems);
      REQUIRE(problems.ok());
      std::vector<std::string> told;
      auto named = [&](bool trusted) {
        return plan::foreign_plugins(source, folder, trusted,
                                     [&](const std::string& one) { told.push_back(one); });
      };
      if (row.refused) {
        try {
          named(false);
          FAIL("taken");
        } catch (const Error& error) {
          CHECK(error.code() == ErrorCode::plugin_owner);
          CHECK(error.helps().at(0).starts_with("--trust-plugins"));
        }
        CHECK(told.empty());
      } else {
        named(false);
        REQUIRE(told.size() == 1);
        CHECK(told[0].find(row.load + row.path) != std::string::npos);
      }
      const plan::ForeignPlugins found = named(true);
      CHECK(found.files.size() + found.folders.size() == 1);
    }
  }
  fs::remove_all(all);
}

}  // namespace foreign_plugins_test
