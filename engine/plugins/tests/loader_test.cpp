// What the loader refuses, each with its own code, and that nothing of a refused library runs.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/plugins/elf.h"
#include "engine/plugins/judge.h"
#include "engine/plugins/registry.h"

using namespace meshwright;
using namespace meshwright::plugins;
namespace fs = std::filesystem;

namespace {

const fs::path kFixtures = MESHWRIGHT_BUILD_DIR "/fixtures/plugins";
const fs::path kBundled = MESHWRIGHT_BUILD_DIR "/lib/meshwright/plugins";

fs::path fixture(const std::string& name) { return kFixtures / ("libmeshwright_fixture_" + name + ".so"); }

SearchPath nowhere() {
  SearchPath search;
  search.standard_places = false;
  return search;
}

// A folder of its own that goes away.
struct Folder {
  fs::path path;
  explicit Folder(const char* name) : path(fs::path(MESHWRIGHT_BUILD_DIR) / "loader_test" / name) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path); }
  fs::path copy(const fs::path& from, const std::string& name) const {
    fs::copy_file(from, path / name);
    return path / name;
  }
};

Error refusal(const fs::path& file) {
  Registry registry(nowhere());
  try {
    const LoadedPlugin& plugin = registry.load(file, "test");
    registry.create(plugin, plugin.strategies.front());
  } catch (const Error& error) {
    return error;
  }
  FAIL("loaded: " << file.string());
  return Error(ErrorCode::internal, "");
}

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
void write(const fs::path& file, const std::string& bytes) {
  fs::remove(file);  // a library that is loaded from there must keep its bytes
  std::ofstream(file, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("a good plugin loads, and one of a future minor version with a longer descriptor does too") {
  for (const char* name : {"good", "longer_struct"}) {
    Registry registry(nowhere());
    const LoadedPlugin& plugin = registry.load(fixture(name), "test");
    CHECK(plugin.version == "1.0.0");
    LoadedStrategy made = registry.create(plugin, plugin.strategies.front());
    MeshRequest request;
    request.world_size = 4;
    CHECK(made.strategy->plan_mesh(request).device_mesh->size("dp_shard") == 4);
    CHECK(&registry.load(fixture(name), "again") == &plugin);
  }
}

TEST_CASE("every wrong library has its own code") {
  struct Row {
    const char* name;
    ErrorCode code;
    const char* says;
  };
  for (const Row& row :
       {Row{"bad_magic", ErrorCode::plugin_bad_magic, "magic"}, Row{"short_struct", ErrorCode::plugin_short_struct, "24 bytes"},
        Row{"descriptor_major", ErrorCode::plugin_sdk_major, "major version 9"}, Row{"sdk_major", ErrorCode::plugin_sdk_major, "sdk.major"},
        Row{"cxx_epoch", ErrorCode::plugin_cxx_epoch, "sdk.cxx_epoch"}, Row{"libtorch", ErrorCode::plugin_libtorch, "torch.version"},
        Row{"other_facts", ErrorCode::plugin_facts, "sizeof.Mesh"}, Row{"aborts", ErrorCode::plugin_cxx_epoch, "nothing of it was run"},
        Row{"no_marker", ErrorCode::plugin_no_marker, "no build facts"},
        Row{"no_descriptor", ErrorCode::plugin_no_descriptor, "meshwright_plugin_v1"},
        Row{"undefined_symbol", ErrorCode::plugin_unresolved, "meshwright_fixture_that_nobody_defines"},
        Row{"create_fails", ErrorCode::plugin_create_failed, "no licence on this machine"},
        Row{"create_throws", ErrorCode::plugin_create_threw, "made of glass"},
        Row{"null_options", ErrorCode::plugin_bad_descriptor, "point nowhere"},
        Row{"bad_default", ErrorCode::plugin_bad_descriptor, "depth"}, Row{"bad_name", ErrorCode::plugin_bad_descriptor, "proper name"},
        Row{"other_facts_text", ErrorCode::plugin_bad_marker, "not those of its marker"}}) {
    std::string name = row.name;
    CAPTURE(name);
    Error error = refusal(fixture(name));
    INFO(error.what());
    CHECK(code_string(error.code()) == code_string(row.code));
    CHECK(exit_status(error.code()) == 2);
    CHECK(error.message().find(row.says) != std::string::npos);
  }
}

TEST_CASE("a refusal shows just the differing facts, all at once, and how to rebuild") {
  Error error = refusal(fixture("other_facts"));
  CHECK(error.message().find("sizeof.Mesh") != std::string::npos);
  CHECK(error.message().find("stdlib.cxx11_abi") != std::string::npos);
  CHECK(error.message().find("torch.version") == std::string::npos);
  CHECK(error.message().find("info.") == std::string::npos);
  REQUIRE(!error.helps().empty());
  CHECK(error.helps()[0].find("cmake") != std::string::npos);
}

TEST_CASE("files that are no library are refused by what they are") {
  Folder folder("files");
  write(folder.path / "text.so", "hello");
  CHECK(refusal(folder.path / "text.so").code() == ErrorCode::plugin_not_elf);
  write(folder.path / "empty.so", "");
  CHECK(refusal(folder.path / "empty.so").code() == ErrorCode::plugin_not_elf);
  CHECK(refusal(folder.path).code() == ErrorCode::plugin_is_directory);
  CHECK(refusal(folder.path / "missing.so").code() == ErrorCode::plugin_unreadable);
  CHECK(refusal("/dev/null").code() == ErrorCode::plugin_unreadable);
  std::string whole = read(fixture("good"));
  for (size_t length = 4; length < whole.size(); length += std::max<size_t>(1, whole.size() / 97)) {
    write(folder.path / "cut.so", whole.substr(0, length));
    CAPTURE(length);
    CHECK(refusal(folder.path / "cut.so").code() == ErrorCode::plugin_truncated);
  }
}

TEST_CASE("what others could have written, or own, is refused") {
  Folder folder("writable");
  fs::path file = folder.copy(fixture("good"), "libmeshwright_w.so");
  REQUIRE(::chmod(file.c_str(), 0777) == 0);
  CHECK(refusal(file).code() == ErrorCode::plugin_permissions);
  REQUIRE(::chmod(file.c_str(), 0755) == 0);
  REQUIRE(::chmod(folder.path.c_str(), 0777) == 0);
  CHECK(refusal(file).code() == ErrorCode::plugin_permissions);
  REQUIRE(::chmod(folder.path.c_str(), 0755) == 0);
  Folder links("links");
  fs::create_symlink(file, links.path / "link.so");
  REQUIRE(::chmod(file.c_str(), 0777) == 0);
  CHECK(refusal(links.path / "link.so").code() == ErrorCode::plugin_permissions);
  REQUIRE(::chmod(file.c_str(), 0755) == 0);
  if (::geteuid() == 0) {
    REQUIRE(::chown(file.c_str(), 12345, 12345) == 0);
    CHECK(refusal(file).code() == ErrorCode::plugin_owner);
  } else {
    MESSAGE("skipped: only root can give a file away");
  }
}

TEST_CASE("a marker that does not belong to its facts is refused") {
  Folder folder("marker");
  std::string bytes = read(fixture("good"));
  // The facts of a library edited by hand, its symbol name left alone.
  size_t at = bytes.find("sdk.cxx_epoch=");
  REQUIRE(at != std::string::npos);
  bytes[at + 14] = '7';
  write(folder.path / "edited.so", bytes);
  CHECK(refusal(folder.path / "edited.so").code() == ErrorCode::plugin_bad_marker);
}

TEST_CASE("two libraries with one strategy name are refused") {
  Registry registry(nowhere());
  registry.load(fixture("good"), "test");
  try {
    registry.load(fixture("duplicate"), "test");
    FAIL("both were loaded");
  } catch (const Error& error) {
    // The name is not among the fixture's own either; both say that it is not its strategy.
    CHECK((error.code() == ErrorCode::plugin_duplicate || error.code() == ErrorCode::plugin_bad_descriptor));
  }
  Folder folder("twice");
  fs::path second = folder.copy(fixture("good"), "libmeshwright_other.so");
  try {
    registry.load(second, "test");
    FAIL("both were loaded");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::plugin_duplicate);
    CHECK(error.message().find("fixture_good") != std::string::npos);
  }
}

TEST_CASE("whatever leaves a hook becomes an error that names the plugin and what it was doing") {
  Registry registry(nowhere());
  const LoadedPlugin& plugin = registry.load(fixture("throws_foreign"), "test");
  LoadedStrategy made = registry.create(plugin, plugin.strategies.front());
  for (int64_t world : {1, 2}) {
    MeshRequest request;
    request.world_size = world;
    try {
      guarded(made, "planning the mesh", [&] { made.strategy->plan_mesh(request); });
      FAIL("nothing was thrown");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::plugin_foreign_exception);
      REQUIRE(error.notes().size() == 1);
      CHECK(error.notes()[0].find("fixture_throws_foreign 1.0.0") != std::string::npos);
      CHECK(error.notes()[0].find("planning the mesh") != std::string::npos);
    }
  }
}

TEST_CASE("the first place that has a strategy wins, and a hit that fails stops") {
  Folder first("first"), second("second");
  first.copy(fixture("good"), "libmeshwright_fixture_good.so");
  second.copy(fixture("good"), "libmeshwright_fixture_good.so");
  SearchPath search = nowhere();
  search.folders = {first.path, second.path};
  {
    Registry registry(search);
    LoadedStrategy found = registry.find("Fixture-Good");  // any letter case, '-' as '_'
    CHECK(found.plugin->path.parent_path() == fs::canonical(first.path));
    CHECK(found.plugin->place == "[plugins] path");
  }
  write(first.path / "libmeshwright_fixture_good.so", "damaged");
  {
    Registry registry(search);
    CHECK_THROWS_AS(registry.find("fixture_good"), Error);
    CHECK(registry.list().size() == 2);
  }
  fs::rename(first.path / "libmeshwright_fixture_good.so", first.path / "libmeshwright_neighbour.so");
  CHECK(Registry(search).find("fixture_good").plugin->path.parent_path() == fs::canonical(second.path));  // a damaged neighbour is no hit
  search.files = {fixture("cxx_epoch")};
  CHECK_THROWS_AS(Registry(search).find("fixture_good"), Error);  // what [plugins] load names must load
}

TEST_CASE("MESHWRIGHT_PLUGIN_PATH is searched, the current folder never is") {
  Folder folder("environment");
  folder.copy(fixture("good"), "libmeshwright_fixture_good.so");
  SearchPath search;
  fs::path before = fs::current_path();
  fs::current_path(folder.path);
  ::unsetenv("MESHWRIGHT_PLUGIN_PATH");
  CHECK_THROWS_AS(Registry(search).find("fixture_good"), Error);
  ::setenv("MESHWRIGHT_PLUGIN_PATH", ".", 1);  // relative folders would be the current one by another name
  CHECK_THROWS_AS(Registry(search).find("fixture_good"), Error);
  ::setenv("MESHWRIGHT_PLUGIN_PATH", folder.path.c_str(), 1);
  CHECK(Registry(search).find("fixture_good").plugin->place == "MESHWRIGHT_PLUGIN_PATH");
  ::unsetenv("MESHWRIGHT_PLUGIN_PATH");
  fs::current_path(before);
}

TEST_CASE("a strategy that is not found lists every place and the nearest name") {
  SearchPath search;
  search.folders = {kFixtures / "nowhere"};
  try {
    Registry(search).find("fsdp3");
    FAIL("found");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::plugin_not_found);
    CHECK(error.key() == "distributed.strategy");
    CHECK(error.message().find((kFixtures / "nowhere").string()) != std::string::npos);
    CHECK(error.message().find("installation") != std::string::npos);
    CHECK(error.message().find("megatron_fsdp") != std::string::npos);
    REQUIRE(!error.helps().empty());
    CHECK(error.helps()[0].find("fsdp2") != std::string::npos);
  }
}

TEST_CASE("bundled strategies are found by name and by alias") {
  SearchPath search = nowhere();
  search.folders = {kBundled};
  Registry registry(search);
  for (const char* name : {"ddp", "DDP", "fsdp2", "megatron_fsdp", "megatron-fsdp", "mfsdp", "moe_ep"})
    CHECK(registry.find(name).strategy != nullptr);
  for (const Listing& listing : registry.list()) CHECK(listing.plugin != nullptr);
}

TEST_CASE("no bytes make the ELF reader crash") {
  const std::string whole = read(kBundled / "libmeshwright_moe_ep.so");
  REQUIRE(whole.size() > 1000);
  uint64_t state = 5;
  auto next = [&] { return state = state * 6364136223846793005u + 1442695040888963407u, state >> 33; };
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = whole;
    for (int k = 0; k < 1 + static_cast<int>(next() % 8); ++k) {
      // Headers and tables are where the numbers are.
      size_t at = next() % 3 == 0 ? next() % bytes.size() : next() % 2 == 0 ? next() % 800 : bytes.size() - 1 - next() % 2500;
      bytes[at] = static_cast<char>(next());
    }
    if (next() % 5 == 0) bytes.resize(next() % bytes.size());
    try {
      parse_elf_markers(bytes, "mutant");
    } catch (const Error& error) {
      CHECK(static_cast<int>(error.code()) / 100 == 4);
      ++refused;
    }
  }
  CHECK(refused > 100);
}
