// Where plugins are looked for, in which order, and what is said when there is none.
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/plugins/tests/fixtures.h"
#include "sdk/comm/tests/shared_memory_switch.h"

using namespace meshwright;
using namespace meshwright::loader;
using namespace meshwright::loader::test;

namespace {

using Env = meshwright::testing::Variable;

struct CurrentFolder {
  fs::path before = fs::current_path();
  explicit CurrentFolder(const fs::path& folder) { fs::current_path(folder); }
  CurrentFolder(const CurrentFolder&) = delete;
  CurrentFolder& operator=(const CurrentFolder&) = delete;
  ~CurrentFolder() { fs::current_path(before); }
};

Error not_found(const SearchPath& search, const std::string& strategy) {
  return error_of([&] { Registry(search).find(strategy); });
}

}  // namespace

TEST_CASE("places are searched in order, and the first that has the strategy wins") {
  Folder named("named"), listed("listed"), listed_later("listed_later"), environment("environment"),
      data("data");
  fs::create_directories(data.path / "meshwright/plugins");
  Env path("MESHWRIGHT_PLUGIN_PATH", ("/nowhere::" + environment.path.string()).c_str()),
      xdg("XDG_DATA_HOME", data.path.c_str());
  SearchPath search;
  search.folders = {listed.path, listed_later.path};
  const std::string name = "libmeshwright_fixture_good.so";
  const std::vector<std::pair<std::string, fs::path>> order = {
      {"[plugins] load", named.path},
      {"[plugins] path", listed.path},
      {"[plugins] path", listed_later.path},
      {"MESHWRIGHT_PLUGIN_PATH", environment.path},
      {"user data", data.path / "meshwright/plugins"}};
  for (const auto& [place, folder] : order) fs::copy_file(fixture("good"), folder / name);
  search.files = {named.path / name};
  for (const auto& [place, folder] : order) {
    LoadedStrategy found;
    Registry registry(search);
    found = registry.find("Fixture-Good");  // any letter case, '-' as '_'
    CHECK(found.plugin->place == place);
    CHECK(found.plugin->path == fs::canonical(folder / name));
    fs::remove(folder / name);
    search.files.clear();
  }
  CHECK(not_found(search, "fixture_good").code() == ErrorCode::plugin_not_found);
  Registry registry(search);
  CHECK(registry.find("ddp").plugin->place == "installation");
}

TEST_CASE("without XDG_DATA_HOME the user's data folder lies in the home folder") {
  Folder home("home");
  fs::create_directories(home.path / ".local/share/meshwright/plugins");
  fs::copy_file(fixture("good"), home.path / ".local/share/meshwright/plugins/libmeshwright_g.so");
  Env path("MESHWRIGHT_PLUGIN_PATH", nullptr), xdg("XDG_DATA_HOME", nullptr),
      user("HOME", home.path.c_str());
  Registry registry(SearchPath{});
  CHECK(registry.find("fixture_good").plugin->place == "user data");
}

TEST_CASE("a hit that fails stops with its own error, a damaged neighbour does not") {
  Folder first("first"), second("second");
  second.copy(fixture("good"), "libmeshwright_fixture_good.so");
  SearchPath search = nowhere();
  search.folders = {first.path, second.path};
  write(first.path / "libmeshwright_fixture_good.so", "damaged");
  CHECK(not_found(search, "fixture_good").code() == ErrorCode::plugin_not_elf);
  {
    Registry registry(search);
    std::vector<Listing> listings = registry.list();
    REQUIRE(listings.size() == 2);
    REQUIRE(listings[0].refused.has_value());
    CHECK(listings[0].refused->code() == ErrorCode::plugin_not_elf);
    CHECK(listings[1].plugin != nullptr);
  }
  fs::rename(first.path / "libmeshwright_fixture_good.so",
             first.path / "libmeshwright_neighbour.so");
  {
    Registry registry(search);
    CHECK(registry.find("fixture_good").plugin->path.parent_path() == fs::canonical(second.path));
  }
  first.copy(fixture("cxx_epoch"),
             "libmeshwright_any.so");  // found by the strategy names in its facts
  CHECK(not_found(search, "fixture_cxx_epoch").code() == ErrorCode::plugin_cxx_epoch);
  search.files = {
      fixture("libtorch")};  // what [plugins] load names must load, whatever is looked for
  CHECK(not_found(search, "fixture_good").code() == ErrorCode::plugin_libtorch);
}

TEST_CASE("the current folder is never searched") {
  Folder folder("current");
  folder.copy(fixture("good"), "libmeshwright_fixture_good.so");
  CurrentFolder here(folder.path);
  for (const char* value :
       {static_cast<const char*>(nullptr), "", ".", ":", "./", "../current", "::."}) {
    Env path("MESHWRIGHT_PLUGIN_PATH", value), xdg("XDG_DATA_HOME", "."), home("HOME", ".");
    Error error = not_found(SearchPath{}, "fixture_good");
    CHECK(error.code() == ErrorCode::plugin_not_found);
    CHECK(error.message().find(folder.path.string()) == std::string::npos);
  }
  SearchPath empty = nowhere();
  empty.folders = {""};
  CHECK(not_found(empty, "fixture_good").code() == ErrorCode::plugin_not_found);
  empty.files = {""};
  CHECK(not_found(empty, "fixture_good").code() == ErrorCode::plugin_unreadable);
}

TEST_CASE("links are followed, and judged by what they point to") {
  Folder real("real"), links("links");
  fs::path file = real.copy(fixture("good"), "anything.so");
  SearchPath search = nowhere();
  search.folders = {links.path};
  fs::create_symlink(file, links.path / "libmeshwright_fixture_good.so");
  fs::create_symlink(links.path / "gone", links.path / "libmeshwright_dangling.so");
  fs::create_symlink(links.path / "libmeshwright_loop.so", links.path / "libmeshwright_loop.so");
  {
    Registry registry(search);
    CHECK(registry.find("fixture_good").plugin->path == fs::canonical(file));
    for (const Listing& listing : registry.list()) {
      INFO(listing.path.string());
      CHECK((listing.plugin != nullptr) ==
            (listing.path.filename() == "libmeshwright_fixture_good.so"));
      if (listing.refused) CHECK(listing.refused->code() == ErrorCode::plugin_unreadable);
    }
  }
  CHECK(not_found(search, "dangling").code() == ErrorCode::plugin_unreadable);
  CHECK(not_found(search, "loop").code() == ErrorCode::plugin_unreadable);
  REQUIRE(::chmod(real.path.c_str(), 0777) == 0);
  CHECK(not_found(search, "fixture_good").code() == ErrorCode::plugin_permissions);
  REQUIRE(::chmod(real.path.c_str(), 0755) == 0);
  fs::create_directory_symlink(real.path, links.path / "folder");
  fs::rename(file, real.path / "libmeshwright_x.so");
  search.folders = {links.path / "folder"};
  Registry registry(search);
  CHECK(registry.find("fixture_good").plugin->path ==
        fs::canonical(real.path / "libmeshwright_x.so"));
}

TEST_CASE("folders and pipes with a plugin's name are refused, and nobody waits for them") {
  Folder folder("oddities");
  REQUIRE(::mkfifo((folder.path / "libmeshwright_a_pipe.so").c_str(), 0600) == 0);
  fs::create_directory(folder.path / "libmeshwright_folder.so");
  folder.copy(fixture("good"), "libmeshwright_z.so");
  SearchPath search = nowhere();
  search.folders = {folder.path};
  Registry registry(search);
  CHECK(registry.find("fixture_good").strategy != nullptr);
  std::vector<Listing> listings = registry.list();
  REQUIRE(listings.size() == 3);
  REQUIRE((listings[0].refused && listings[1].refused));
  CHECK(listings[0].refused->code() == ErrorCode::plugin_unreadable);
  CHECK(listings[1].refused->code() == ErrorCode::plugin_is_directory);
}

TEST_CASE("a strategy that is not found lists every place and the nearest name") {
  Folder data("not_found");
  Env path("MESHWRIGHT_PLUGIN_PATH", "/nowhere/one:/nowhere/two"),
      xdg("XDG_DATA_HOME", data.path.c_str());
  SearchPath search;
  search.files = {fixture("good")};
  search.folders = {kFixtures / "nowhere"};
  Error error = not_found(search, "fsdp3");
  INFO(error.what());
  CHECK(error.code() == ErrorCode::plugin_not_found);
  CHECK(error.key() == "distributed.strategy");
  for (const std::string& text :
       {"[plugins] load: " + fixture("good").string(),
        "[plugins] path: " + (kFixtures / "nowhere").string() + " (no such folder)",
        std::string("MESHWRIGHT_PLUGIN_PATH: /nowhere/one"),
        std::string("MESHWRIGHT_PLUGIN_PATH: /nowhere/two"),
        "user data: " + (data.path / "meshwright/plugins").string(),
        "installation: " + kBundled.string(), std::string("megatron_fsdp")}) {
    CAPTURE(text);
    CHECK(error.message().find(text) != std::string::npos);
  }
  REQUIRE(error.helps().size() == 3);
  CHECK(error.helps()[0] == "set distributed.strategy = \"fsdp2\"");
  for (const char* name : {"ddp", "fsdp2", "megatron_fsdp", "moe_ep", "fixture_good"})
    CHECK(error.helps()[1].find(name) != std::string::npos);
  for (const char* way : {"plugins.load = [", "MESHWRIGHT_PLUGIN_PATH"})
    CHECK(error.helps()[2].find(way) != std::string::npos);
}

TEST_CASE("bundled strategies are found by name and by alias") {
  SearchPath search = nowhere();
  search.folders = {kBundled};
  Registry registry(search);
  for (const char* name :
       {"ddp", "DDP", "fsdp2", "megatron_fsdp", "megatron-fsdp", "mfsdp", "moe_ep"})
    CHECK(registry.find(name).strategy != nullptr);
  for (const Listing& listing : registry.list()) CHECK(listing.plugin != nullptr);
}
