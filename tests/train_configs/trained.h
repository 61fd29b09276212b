// Runs of `train` as a user starts them, and what they leave behind.
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

#include "tests/contents.h"

namespace json = boost::json;
namespace fs = std::filesystem;

inline const std::string kRuns = MESHWRIGHT_BUILD_DIR "/train_configs_runs";

struct Trained {
  int status = 0;
  std::string out;
  std::vector<double> losses, validation, rates;
  std::vector<int64_t> memory;  // the most bytes of a rank, a step
  std::string sample;
};

// What a command of the program prints. `environment`: words for env.
inline std::string said(const std::string& arguments, int* status = nullptr,
                        const std::string& environment = {}) {
  const std::string command =
      "cd '" MESHWRIGHT_SOURCE_DIR "' && env -u WORLD_SIZE -u RANK NO_COLOR=1 LC_ALL=C.UTF-8 " +
      environment + " '" MESHWRIGHT_BUILD_DIR "/bin/meshwright' " + arguments + " 2>&1 </dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    out.append(buffer.data(), n);
  int raw = pclose(pipe);
  if (status != nullptr) *status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return out;
}

// `from`: another run, which this one goes on with.
inline Trained train(const std::string& arguments, const std::string& name,
                     const std::string& from = "") {
  fs::remove_all(kRuns + "/" + name);
  if (!from.empty())
    fs::copy(kRuns + "/" + from, kRuns + "/" + name,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  Trained run;
  run.out = said("train " + arguments + " --set run.dir='" + kRuns + "' --set run.name=" + name,
                 &run.status, "OMP_NUM_THREADS=1");
  fs::path folder = kRuns + "/" + name;
  std::ifstream metrics(folder / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    json::object row = json::parse(line).as_object();
    if (row.contains("loss")) run.losses.push_back(row.at("loss").as_double());
    if (row.contains("lr")) run.rates.push_back(row.at("lr").to_number<double>());
    if (row.contains("memory_bytes")) run.memory.push_back(row.at("memory_bytes").as_int64());
    if (row.contains("validation_loss"))
      run.validation.push_back(row.at("validation_loss").as_double());
  }
  run.sample = contents(folder / "sample.txt");
  return run;
}

inline void check_equal(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-5));
}
