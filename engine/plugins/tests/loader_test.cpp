// What the loader refuses, each with its own code, and that nothing of a refused library runs.
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <sstream>
#include <vector>

#include "engine/plugins/tests/fixtures.h"
#include "meshwright/parallel/parallel.h"

using namespace meshwright;
using namespace meshwright::loader;
using namespace meshwright::loader::test;

TEST_CASE(
    "a good plugin loads, and one of a future minor version with a longer descriptor does too") {
  for (const char* name : {"good", "longer_struct", "other_wheel", "shared_table_alike"}) {
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
       {Row{"bad_magic", ErrorCode::plugin_bad_magic, "magic"},
        Row{"short_struct", ErrorCode::plugin_short_struct, "24 bytes"},
        Row{"descriptor_major", ErrorCode::plugin_sdk_major, "major version 9"},
        Row{"sdk_major", ErrorCode::plugin_sdk_major, "sdk.major"},
        Row{"cxx_epoch", ErrorCode::plugin_cxx_epoch, "sdk.cxx_epoch"},
        Row{"libtorch", ErrorCode::plugin_libtorch, "torch.version"},
        Row{"other_facts", ErrorCode::plugin_facts, "sizeof.Mesh"},
        Row{"aborts", ErrorCode::plugin_cxx_epoch, "nothing of it was run"},
        Row{"no_marker", ErrorCode::plugin_no_marker, "no build facts"},
        Row{"no_descriptor", ErrorCode::plugin_no_descriptor, "meshwright_plugin_v1"},
        Row{"undefined_symbol", ErrorCode::plugin_unresolved,
            "meshwright_fixture_that_nobody_defines"},
        Row{"create_fails", ErrorCode::plugin_create_failed, "no licence on this machine"},
        Row{"create_throws", ErrorCode::plugin_create_threw, "made of glass"},
        Row{"null_options", ErrorCode::plugin_bad_descriptor, "point nowhere"},
        Row{"bad_default", ErrorCode::plugin_bad_descriptor, "depth"},
        Row{"bad_name", ErrorCode::plugin_bad_descriptor, "proper name"},
        Row{"bad_alias", ErrorCode::plugin_bad_descriptor, "no name"},
        Row{"bad_version", ErrorCode::plugin_bad_descriptor, "1.2.3"},
        Row{"no_create", ErrorCode::plugin_bad_descriptor, "no create"},
        Row{"no_strategies", ErrorCode::plugin_bad_descriptor, "no strategies"},
        Row{"null_name", ErrorCode::plugin_bad_descriptor, "proper name"},
        Row{"odd_option", ErrorCode::plugin_bad_descriptor, "0 bytes"},
        Row{"odd_strategy", ErrorCode::plugin_bad_descriptor, "bytes"},
        Row{"same_name_twice", ErrorCode::plugin_bad_descriptor, "two strategies named"},
        Row{"capabilities", ErrorCode::plugin_bad_descriptor,
            "has the capabilities 0x40, which do not exist"},
        Row{"shared_table", ErrorCode::plugin_bad_descriptor,
            "share the table [distributed.fixture_shared_table], but not the option"},
        Row{"needs_library", ErrorCode::plugin_unresolved,
            "needs the library libfixture_helper.so, which is not found"},
        Row{"unlisted", ErrorCode::plugin_bad_descriptor, "STRATEGIES"},
        Row{"other_facts_text", ErrorCode::plugin_bad_marker, "not those of its marker"},
        Row{"runtime_missing", ErrorCode::plugin_unreadable, "which runs it, is missing"},
        Row{"runtime_elsewhere", ErrorCode::plugin_bad_descriptor, "no proper file name"},
        Row{"runtime_of_another_build", ErrorCode::plugin_facts, "different builds"},
        Row{"runtime_is_no_library", ErrorCode::plugin_not_elf, "fixture_files.txt"}}) {
    std::string name = row.name;
    CAPTURE(name);
    Error error = refusal(fixture(name));
    INFO(error.what());
    CHECK(code_string(error.code()) == code_string(row.code));
    CHECK(exit_status(error.code()) == 2);
    CHECK(error.message().find(row.says) != std::string::npos);
  }
}

TEST_CASE(
    "a plugin of two halves plans without its running half, which is loaded when a model is "
    "parallelized") {
  auto is_mapped = [](const std::string& name) {
    return ::dlopen((kFixtures / ("meshwright_fixture_" + name + ".so")).c_str(),
                    RTLD_LAZY | RTLD_NOLOAD) != nullptr;
  };
  Registry registry(nowhere());
  const LoadedPlugin& plugin = registry.load(fixture("two_halves"), "test");
  CHECK(plugin.runtime_half == kFixtures / "meshwright_fixture_two_halves_runtime.so");
  LoadedStrategy made = registry.create(plugin, plugin.strategies.front());
  MeshRequest request;
  request.world_size = 4;
  MeshPlan mesh = made.strategy->plan_mesh(request);
  CHECK_FALSE(is_mapped("two_halves_runtime"));
  ModelOutline outline;
  TpPlan tp;
  ParallelizeRequest run{nullptr, outline, mesh, tp, request.config, nullptr};
  Error error = error_of([&] { made.strategy->parallelize(run); });
  CHECK(error.message() == "the running half was called");
  CHECK(is_mapped("two_halves_runtime"));

  // One that has neither a running half nor a parallelize() of its own.
  const LoadedPlugin& plans = registry.load(fixture("good"), "test");
  LoadedStrategy only = registry.create(plans, plans.strategies.front());
  CHECK(error_of([&] { only.strategy->parallelize(run); }).code() == ErrorCode::not_in_release);
}

TEST_CASE("the bundled strategies are loaded without LibTorch") {
  Registry registry({});
  for (const char* name : {"ddp", "fsdp2", "megatron_fsdp", "moe_ep"})
    CHECK(registry.find(name).plugin->name == name);
  CHECK(read("/proc/self/maps").find("libtorch") == std::string::npos);
}

TEST_CASE("a refusal shows just the differing facts, all at once, and how to rebuild") {
  struct Row {
    const char* name;
    std::vector<std::vector<std::string>> differing;  // fact, value of the plugin
  };
  for (const Row& row :
       {Row{"other_facts", {{"sizeof.Mesh", "1/1"}, {"stdlib.cxx11_abi", "0"}}},
        Row{"libtorch", {{"torch.abi_version", "0100000000000000"}, {"torch.version", "1.0.0"}}},
        Row{"sdk_major", {{"sdk.major", "9"}}}}) {
    Error error = refusal(fixture(row.name));
    INFO(error.message());
    std::istringstream lines(error.message());
    std::string line;
    std::getline(lines, line);  // what was refused
    std::vector<std::vector<std::string>> shown;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string fact, engine, plugin;
      words >> fact >> engine >> plugin;
      if (engine_facts().contains(fact)) {
        CHECK(engine_facts().at(fact) == engine);
        shown.push_back({fact, plugin});
      } else {
        CHECK((fact == "fact" ||
               !std::isalpha(static_cast<unsigned char>(fact[0]))));  // the header or its rule
      }
    }
    CHECK(shown == row.differing);
    REQUIRE(!error.helps().empty());
    CHECK(error.helps()[0].find("cmake -S") != std::string::npos);
  }
}

TEST_CASE("the static constructor of a refused library never runs") {
  // With the right facts it is loaded, and takes its process down: what the refused one would have
  // done.
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    struct rlimit none{};
    ::setrlimit(RLIMIT_CORE, &none);
    try {
      Registry(nowhere()).load(fixture("aborts_when_loaded"), "test");
    } catch (...) {
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(refusal(fixture("aborts")).code() == ErrorCode::plugin_cxx_epoch);  // and we are still here
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
  CHECK(refusal("").code() == ErrorCode::plugin_unreadable);
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
    REQUIRE(::chown(file.c_str(), 0, 0) == 0);
    REQUIRE(::chown(folder.path.c_str(), 12345, 12345) == 0);
    CHECK(refusal(file).code() == ErrorCode::plugin_owner);
  } else {
    MESSAGE("skipped: only root can give a file away");
  }
}

TEST_CASE("facts that were edited in the file are refused, in the marker and in the descriptor") {
  Folder folder("marker");
  const std::string bytes = read(fixture("good"));
  std::vector<ErrorCode> codes;
  for (size_t at = bytes.find("sdk.cxx_epoch="); at != std::string::npos;
       at = bytes.find("sdk.cxx_epoch=", at + 1)) {
    std::string edited = bytes;
    edited[at + 14] = edited[at + 14] == '9' ? '8' : '9';  // whatever the epoch is
    const fs::path file = folder.path / ("edited" + std::to_string(at) + ".so");
    write(file, edited);
    codes.push_back(refusal(file).code());
  }
  std::sort(codes.begin(), codes.end());
  CHECK(codes == std::vector<ErrorCode>{ErrorCode::plugin_cxx_epoch, ErrorCode::plugin_bad_marker});
}

TEST_CASE("a library that hides others of its strategy's name is told with their paths") {
  Folder first("hides"), second("hidden");
  SearchPath search = nowhere();
  search.files = {first.copy(fixture("good"), "libmeshwright_mine.so")};
  search.folders = {second.path};
  const fs::path other = second.copy(fixture("duplicate"), "libmeshwright_fixture_duplicate.so");
  Registry registry(search);
  const LoadedStrategy found = registry.find("fixture_good");
  CHECK(registry.hidden_by(found) == std::vector<fs::path>{fs::canonical(other)});
  fs::remove(other);
  CHECK(registry.hidden_by(found).empty());
}

TEST_CASE("two libraries with one strategy name or alias are refused") {
  Registry registry(nowhere());
  registry.load(fixture("good"), "test");
  Folder folder("twice");
  for (const fs::path& second : {fixture("duplicate"), fixture("duplicate_alias"),
                                 folder.copy(fixture("good"), "libmeshwright_other.so")}) {
    Error error = error_of([&] { registry.load(second, "test"); });
    INFO(error.what());
    CHECK(error.code() == ErrorCode::plugin_duplicate);
    CHECK(error.message().find(fs::canonical(fixture("good")).string()) != std::string::npos);
    CHECK(error.message().find(fs::canonical(second).string()) != std::string::npos);
  }
}

TEST_CASE("whatever leaves a hook becomes an error that names the plugin and what it was doing") {
  Registry registry(nowhere());
  const LoadedPlugin& plugin = registry.load(fixture("throws_foreign"), "test");
  LoadedStrategy made = registry.create(plugin, plugin.strategies.front());
  for (int64_t world : {1, 2}) {
    MeshRequest request;
    request.world_size = world;
    Error error = error_of([&] { made.strategy->plan_mesh(request); });
    CHECK(error.code() == ErrorCode::plugin_foreign_exception);
    CHECK(error.message().find(world == 1 ? "of type int, left the plugin"
                                          : "std::runtime_error left the plugin: foreign") !=
          std::string::npos);
    REQUIRE(error.notes().size() == 1);
    CHECK(error.notes()[0].find("fixture_throws_foreign 1.0.0") != std::string::npos);
    CHECK(error.notes()[0].find("in plan_mesh, planning the mesh") != std::string::npos);
  }
}
