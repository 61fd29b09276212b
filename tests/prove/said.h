// The program as it is called, and what it said.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

struct Said {
  int status = 0;
  std::string out;
};

// `environment`: variables, "A=b c=d".
inline Said meshwright_says(const std::string& arguments, const std::string& environment = "") {
  const std::string command = "cd '" MESHWRIGHT_SOURCE_DIR
                              "' && env -u WORLD_SIZE -u RANK NO_COLOR=1 COLUMNS=200 "
                              "OMP_NUM_THREADS=1 LC_ALL=C.UTF-8 " +
                              environment + " '" MESHWRIGHT_BUILD_DIR "/bin/meshwright' " +
                              arguments + " 2>&1 </dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Said out;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    out.out.append(buffer.data(), n);
  const int raw = pclose(pipe);
  out.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return out;
}
