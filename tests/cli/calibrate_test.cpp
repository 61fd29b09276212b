// meshwright calibrate as a user runs it: the file that it writes is one that plan --machine takes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/cli/ran.h"

namespace calibrate_test {

namespace json = boost::json;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path =
      fs::temp_directory_path() / ("meshwright_calibrate_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string file() const { return (path / "here.toml").string(); }
};

const std::string kThreads = "OMP_NUM_THREADS=1", kQuick = "--set dist_env.device=cpu --seconds 1 ";

std::string contents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

}  // namespace

TEST_CASE("two ranks measure, write a file, and a plan is predicted with it") {
  const Folder folder;
  const Ran ran = run("calibrate --json --nproc 2 " + kQuick + "--out '" + folder.file() + "'",
                      "2>/dev/null", kThreads);
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  const json::object out = json::parse(ran.out).as_object();
  CHECK(out.at("ranks").to_number<int>() == 2);
  CHECK(out.at("seconds").to_number<double>() < 120);
  const json::object& figures = out.at("figures").as_object();
  for (const char* key : {"device.bandwidth", "peak.fp32", "peak.bf16", "rate.product",
                          "rate.elementwise", "rate.attention", "network.bus",
                          "network.step_inside", "network.ranks_per_host", "host.layer_forward"}) {
    CAPTURE(key);
    CHECK(figures.at(key).at("measured").as_bool());
  }
  CHECK(!figures.at("network.nic").at("measured").as_bool());  // one host
  // A core of today: 1 to 1000 GFLOP/s, 0.5 to 200 GB/s.
  CHECK(figures.at("peak.fp32").at("value").to_number<double>() > 1e9);
  CHECK(figures.at("peak.fp32").at("value").to_number<double>() < 1e12);
  CHECK(figures.at("device.bandwidth").at("value").to_number<double>() > 0.5e9);
  CHECK(figures.at("device.bandwidth").at("value").to_number<double>() < 2e11);
  const std::string text = contents(folder.file());
  CHECK(text.find("\"network.bus\" = \"measured by meshwright calibrate, 20") != std::string::npos);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
  // Its figures, and nothing guessed of what was measured.
  const Ran plan =
      run("plan configs/tp_cpu.toml --world-size 2 --json --machine '" + folder.file() + "'");
  INFO(plan.out);
  REQUIRE(plan.status == 0);
  const json::object time = json::parse(plan.out).at("time").as_object();
  CHECK(time.at("seconds").to_number<double>() > 0);
  for (const json::value& guessed : time.at("machine").at("guessed").as_array())
    CHECK(!figures.at(guessed.as_string()).at("measured").as_bool());

  // What is there stays, unless it is to be replaced.
  const Ran again = run("calibrate " + kQuick + "--out '" + folder.file() + "'", "2>&1", kThreads);
  CHECK(again.status == 2);
  CHECK(again.out.find("--force") != std::string::npos);
  CHECK(contents(folder.file()) == text);
  const Ran forced =
      run("calibrate --force --dtype float32 " + kQuick + "--out '" + folder.file() + "'",
          "2>/dev/null", kThreads);
  INFO(forced.out);
  REQUIRE(forced.status == 0);
  CHECK(contents(folder.file()) != text);
  // The table, and that another type was not measured.
  CHECK(forced.out.find("peak.bf16") != std::string::npos);
  CHECK(forced.out.find("guessed") != std::string::npos);
  CHECK(forced.out.find("product float32, backward") != std::string::npos);
  CHECK(forced.out.find("product bfloat16") == std::string::npos);
}

TEST_CASE("what is wrong on the command line is refused before anything is measured") {
  struct Row {
    const char* arguments;
    int status;
    const char* says;
  };
  for (const Row& row :
       {Row{"--nproc 0", 2, "E0101"}, Row{"--seconds 0", 2, "--seconds 30"},
        Row{"--seconds soon", 2, "E0101"}, Row{"--dtype float16", 2, "float32"},
        Row{"--out=", 2, "E0101"}, Row{"--out configs", 2, "is a folder"},
        Row{"--out /nowhere/here.toml", 7, "E0705"}, Row{"job.toml", 2, "has no use for"},
        Row{"--set dist_env.devise=cpu", 2, "devise"}}) {
    CAPTURE(row.arguments);
    const Ran ran = run(std::string("calibrate ") + row.arguments, "2>&1");
    INFO(ran.out);
    CHECK(ran.status == row.status);
    CHECK(ran.out.find(row.says) != std::string::npos);
  }
  CHECK(run("calibrate -h").out.find("--seconds N") != std::string::npos);
}

}  // namespace calibrate_test
