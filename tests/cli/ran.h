// The program as a user runs it.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

struct Ran {
  int status = 0;
  std::string out;
};

inline Ran run(const std::string& arguments, const std::string& redirect = "2>/dev/null",
               const std::string& environment = "") {
  std::string command =
      "cd '" MESHWRIGHT_SOURCE_DIR
      "' && env -u WORLD_SIZE -u MESHWRIGHT_PLUGIN_PATH NO_COLOR=1 LC_ALL=C.UTF-8 " +
      environment + " '" MESHWRIGHT_BUILD_DIR "/bin/meshwright' " + arguments + " " + redirect +
      " </dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Ran ran;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    ran.out.append(buffer.data(), n);
  int raw = pclose(pipe);
  ran.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return ran;
}
