// What the tests of the loader share: the fixtures of tests/fixtures/plugins, folders that go away,
// and how a file is refused.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "engine/plugins/registry.h"
#include "meshwright/error.h"

namespace meshwright::loader::test {

namespace fs = std::filesystem;

inline const fs::path kFixtures = MESHWRIGHT_BUILD_DIR "/fixtures/plugins";
inline const fs::path kBundled = MESHWRIGHT_BUILD_DIR "/lib/meshwright/plugins";

inline fs::path fixture(const std::string& name) {
  return kFixtures / ("libmeshwright_fixture_" + name + ".so");
}

inline SearchPath nowhere() {
  SearchPath search;
  search.standard_places = false;
  return search;
}

// A folder of its own that goes away.
struct Folder {
  fs::path path;
  explicit Folder(const std::string& name)
      : path(fs::path(MESHWRIGHT_BUILD_DIR) / "loader_test" / name) {
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

inline std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
inline void write(const fs::path& file, const std::string& bytes) {
  fs::remove(file);  // a library that is loaded from there must keep its bytes
  std::ofstream(file, std::ios::binary) << bytes;
}

// The error that `body` ends with.
template <class Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error");
  return Error(ErrorCode::internal, "");
}

// How the file is refused when it is loaded and its first strategy made.
inline Error refusal(const fs::path& file) {
  INFO(file.string());
  return error_of([&] {
    Registry registry(nowhere());
    const LoadedPlugin& plugin = registry.load(file, "test");
    registry.create(plugin, plugin.strategies.front());
  });
}

}  // namespace meshwright::loader::test
