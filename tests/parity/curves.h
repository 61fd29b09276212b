// Trains a job with the program, as a user does, and reads the curve it leaves.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace fs = std::filesystem;
namespace json = boost::json;

namespace meshwright::parity {

struct Row {
  double loss, norm;
};

inline std::vector<Row> read_curve(const fs::path& path) {
  std::ifstream in(path);
  std::vector<Row> out;
  for (std::string line; std::getline(in, line);) {
    json::object row = json::parse(line).as_object();
    if (row.contains("grad_norm"))
      out.push_back({row["loss"].to_number<double>(), row["grad_norm"].to_number<double>()});
  }
  return out;
}

struct Folder {
  fs::path path = fs::temp_directory_path() / ("meshwright_parity_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

inline const std::string kData = MESHWRIGHT_SOURCE_DIR "/tests/data/parity/";

// 20 steps of 12 samples; runs the program as a user does.
inline std::vector<Row> train(const Folder& folder, const std::string& family, int ranks,
                              int accumulation, const std::vector<std::string>& sets,
                              const std::string& flags = "") {
  fs::path job = folder.path / "job.toml";
  std::ofstream(job) << "schema = 1\n[run]\nthreads = 1\nname = \"parity\"\ndir = \""
                     << folder.path.string() << "\"\n[model]\npretrained = \"" << kData << family
                     << "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = "
                        "\"float32\"\n[step_scheduler]\nglobal_batch_size = 12\nlocal_batch_size = "
                     << 12 / ranks / accumulation
                     << "\nmax_steps = 20\n[optimizer]\nlr = 1e-3\n[lr_scheduler]\nlr_decay_style "
                        "= \"constant\"\nlr_warmup_steps = 0\n"
                        "[dataset]\nkind = \"tokens\"\ndtype = \"uint16\"\npath = \""
                     << kData << "train.bin\"\nseq_len = 40\nshuffle = false\n";
  std::string command = MESHWRIGHT_BUILD_DIR "/bin/meshwright train '" + job.string() +
                        "' --nproc " + std::to_string(ranks) + " " + flags;
  for (const std::string& set : sets) command += " --set '" + set + "'";
  command += " > '" + (folder.path / "out").string() + "' 2>&1";
  fs::remove_all(folder.path / "parity");  // else it would continue, or be finished
  int status = std::system(command.c_str());
  std::ifstream said(folder.path / "out");
  std::string text((std::istreambuf_iterator<char>(said)), std::istreambuf_iterator<char>());
  INFO(text);
  CHECK(status == 0);
  return read_curve(folder.path / "parity" / "metrics.jsonl");
}

inline double worst(const std::vector<Row>& found, const std::vector<Row>& expected, bool norms) {
  REQUIRE(expected.size() == 20);
  REQUIRE(found.size() == 20);
  double out = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    double ratio = norms ? found[i].norm / expected[i].norm : found[i].loss / expected[i].loss;
    out = std::max(out, std::abs(ratio - 1));
  }
  return out;
}

}  // namespace meshwright::parity
