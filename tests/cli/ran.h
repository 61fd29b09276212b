// The program as a user runs it, and what cases of it share.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fixtures/folder.h"

namespace fs = std::filesystem;
namespace json = boost::json;

struct Ran {
  int status = 0;
  std::string out;
  bool says(const std::string& part) const { return out.find(part) != std::string::npos; }
};

// A line of the shell.
inline Ran shell(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Ran ran;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    ran.out.append(buffer.data(), n);
  const int raw = pclose(pipe);
  ran.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return ran;
}

inline Ran run(const std::string& arguments, const std::string& redirect = "2>/dev/null",
               const std::string& environment = "") {
  return shell("cd '" MESHWRIGHT_SOURCE_DIR
               "' && env -u WORLD_SIZE -u MESHWRIGHT_PLUGIN_PATH NO_COLOR=1 LC_ALL=C.UTF-8 " +
               environment + " '" MESHWRIGHT_BUILD_DIR "/bin/meshwright' " + arguments + " " +
               redirect + " </dev/null");
}

// What it answers to --json.
inline json::object answer(const std::string& arguments, int status = 0) {
  const Ran ran = run(arguments + " --json");
  INFO(arguments, "\n", ran.out);
  REQUIRE(ran.status == status);
  return json::parse(ran.out).as_object();
}

// How a start with these words ends, and what it says.
struct Said {
  std::string arguments;
  int status;
  std::string part = "", also = "", third = "", fourth = "";
};
inline void check_said(const std::string& verb, const std::vector<Said>& rows) {
  for (const Said& row : rows) {
    const Ran ran = run(verb + row.arguments, "2>&1", "COLUMNS=400");
    INFO(verb, row.arguments, "\n", ran.out);
    CHECK(ran.status == row.status);
    for (const std::string& part : {row.part, row.also, row.third, row.fourth})
      CHECK_MESSAGE(ran.says(part), part);
  }
}

inline std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

struct Folder : TemporaryFolder {
  // Returns where it is.
  std::string put(const fs::path& name, const std::string& bytes) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
    return (path / name).string();
  }
  std::string quoted(const fs::path& name) const { return ::quoted(path / name); }
};

inline double number(const json::value& value) { return value.to_number<double>(); }
inline std::string text(const json::value& value) { return json::serialize(value); }
