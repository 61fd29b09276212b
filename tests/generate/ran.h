// The program as a user runs it, and folders of models for it.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/contents.h"

namespace json = boost::json;
namespace fs = std::filesystem;

struct Ran {
  int status = 0;
  std::string out;
  int pieces = 0;  // in which it came
};

// `generate` with standard error thrown away, or as part of the output.
inline Ran run(const std::string& arguments, bool errors = false) {
  std::string command = "cd '" MESHWRIGHT_SOURCE_DIR
                        "' && env -u WORLD_SIZE -u RANK NO_COLOR=1 LC_ALL=C.UTF-8 "
                        "OMP_NUM_THREADS=1 '" MESHWRIGHT_BUILD_DIR "/bin/meshwright' " +
                        arguments + (errors ? " 2>&1" : " 2>/dev/null") + " </dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Ran ran;
  char buffer[4096];
  for (ssize_t n; (n = ::read(::fileno(pipe), buffer, sizeof buffer)) > 0; ++ran.pieces)
    ran.out.append(buffer, static_cast<size_t>(n));
  int raw = pclose(pipe);
  ran.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return ran;
}

inline std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

struct Folder {
  fs::path path = fs::temp_directory_path() / ("meshwright_generate_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  // A copy of one of tests/data/nets.
  fs::path net(const std::string& name) const {
    fs::path copy = path / name;
    fs::create_directories(copy);
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(fs::path(MESHWRIGHT_SOURCE_DIR "/tests/data/nets") / name / file, copy / file,
                    fs::copy_options::overwrite_existing);
    return copy;
  }
};

inline void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Arguments of `generate`, the status that it ends with, and what it says.
using Refused = std::vector<std::tuple<std::string, int, std::string>>;

inline void check_refused(const Refused& rows, const std::string& more = "") {
  for (const auto& [arguments, status, part] : rows) {
    const Ran ran = run("generate " + arguments + more, true);
    INFO(arguments, "\n", ran.out);
    CHECK(ran.status == status);
    CHECK(ran.out.find(part) != std::string::npos);
  }
}
