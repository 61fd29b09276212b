// meshwright calibrate as a user runs it: the file that it writes is one that plan --machine takes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cli/ran.h"
#include "tests/contents.h"

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

// What two ranks measured, once for all cases: what the program said, and its file.
struct Measured {
  Ran ran;
  std::string text;
  int64_t files = 0;  // in the folder of that
};
const Measured& measured_by_two() {
  static const Measured measured = [] {
    Measured out;
    // What other tests do meanwhile may hide the rate of messages: then it is not written.
    for (int i = 0; i < 3 && out.text.find("send_inside") == std::string::npos; ++i) {
      const Folder folder;
      out.ran = run("calibrate --json --nproc 2 " + kQuick + "--out '" + folder.file() + "'",
                    "2>/dev/null", kThreads);
      out.text = contents(folder.file());
      out.files = std::distance(fs::directory_iterator(folder.path), fs::directory_iterator());
    }
    return out;
  }();
  return measured;
}

}  // namespace

TEST_CASE("two ranks measure, write a file, and a plan is predicted with it") {
  const Measured& measured = measured_by_two();
  INFO(measured.ran.out);
  REQUIRE(measured.ran.status == 0);
  const Folder folder;
  std::ofstream(folder.file()) << measured.text;
  const json::object out = json::parse(measured.ran.out).as_object();
  CHECK(out.at("ranks").to_number<int>() == 2);
  CHECK(out.at("seconds").to_number<double>() < 120);
  const json::object& figures = out.at("figures").as_object();
  for (const char* key :
       {"device.bandwidth", "peak.fp32", "peak.bf16", "rate.product", "rate.elementwise",
        "rate.attention", "network.bus", "network.step_inside", "network.send_inside",
        "network.send_latency_inside", "network.ranks_per_host", "host.layer_forward"}) {
    CAPTURE(key);
    CHECK(figures.at(key).at("measured").as_bool());
  }
  CHECK(!figures.at("network.nic").at("measured").as_bool());  // one host
  CHECK(!figures.contains("network.send_outside"));
  // A core of today: 1 to 1000 GFLOP/s, 0.5 to 200 GB/s.
  CHECK(figures.at("peak.fp32").at("value").to_number<double>() > 1e9);
  CHECK(figures.at("peak.fp32").at("value").to_number<double>() < 1e12);
  CHECK(figures.at("device.bandwidth").at("value").to_number<double>() > 0.5e9);
  CHECK(figures.at("device.bandwidth").at("value").to_number<double>() < 2e11);
  const std::string& text = measured.text;
  CHECK(text.find("\"network.bus\" = \"measured by meshwright calibrate, 20") != std::string::npos);
  CHECK(measured.files == 1);
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

TEST_CASE("a run corrects its machine, and a plan with the new file predicts its step") {
  REQUIRE(measured_by_two().ran.status == 0);  // before the folder of this case, which is the same
  const Folder folder;
  const std::string machine = folder.file(), runs = (folder.path / "runs").string(),
                    corrected = (folder.path / "corrected.toml").string(),
                    job = "configs/first_fsdp2_cpu.toml ",
                    from = "calibrate --from '" + runs + "/first' --out '" + corrected + "' ";
  std::ofstream(machine) << measured_by_two().text;
  const std::string train = "train " + job + "--nproc 2 --set run.dir='" + runs + "' ";
  const Ran trained =
      run(train + "--set step_scheduler.max_steps=12 --set report.machine='" + machine + "'",
          "2>&1", kThreads);
  INFO(trained.out);
  REQUIRE(trained.status == 0);
  const Ran ran = run(from + "--json");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  const json::object out = json::parse(ran.out).as_object();
  auto number = [&](const char* table, const char* key) {
    return out.at(table).as_object().at(key).to_number<double>();
  };
  const json::object plan = json::parse(contents(runs + "/first/plan.json")).as_object();
  auto said = [&](const char* table, const char* key) {
    return plan.at(table).as_object().at(key).to_number<double>();
  };
  const double measured = said("measured", "seconds");
  CHECK(number("measured", "seconds") == doctest::Approx(measured));
  CHECK(number("measured", "steps") == 9);
  // With the machine's own file it predicts what the run itself did.
  CHECK(number("before", "seconds") == doctest::Approx(said("predicted", "seconds")));
  auto planned = [&](const std::string& file) {
    const Ran with = run("plan " + job + "--world-size 2 --json --machine '" + file + "'");
    INFO(with.out);
    REQUIRE(with.status == 0);
    return json::parse(with.out).at("time").as_object().at("seconds").to_number<double>();
  };
  CHECK(planned(corrected) == doctest::Approx(measured).epsilon(0.02));
  CHECK(planned(corrected) == doctest::Approx(number("after", "seconds")));
  const std::string text = contents(corrected);
  CHECK(text.find("\"peak.fp32\" = \"from a run: " + runs + "/first, ") != std::string::npos);
  CHECK(text.find("\"rate.product\" = \"measured by meshwright calibrate") != std::string::npos);

  // What is there stays; the table has the same.
  CHECK(run(from, "2>&1").status == 2);
  CHECK(contents(corrected) == text);
  const Ran table = run(from + "--force");
  CHECK(table.status == 0);
  for (const char* part : {"predicted with ", "measured", "from a run", "peak.fp32"})
    CHECK(table.out.find(part) != std::string::npos);

  // A run that was told of no machine, and a machine that is none of it; then a run too short.
  REQUIRE(run(train + "--set run.name=plain --set step_scheduler.max_steps=9", "2>&1", kThreads)
              .status == 0);
  REQUIRE(run(train + "--set run.name=short --set step_scheduler.max_steps=5", "2>&1", kThreads)
              .status == 0);
  struct Row {
    std::string run, rest;
    int status;
    const char *code, *says;
  };
  for (const Row& row : {Row{"/plain", "", 2, "E0206", "--machine"},
                         Row{"/plain", "--machine h100", 2, "E0204", "no factor"},
                         Row{"/plain", "--machine h1000", 2, "E0205", "h100"},
                         Row{"/short", "--machine cpu", 2, "E0204", "2 steps"},
                         Row{"/gone", "", 2, "E0209", "does not exist"},
                         Row{"", "", 2, "E0209", "is not the folder of a run"}}) {
    CAPTURE(row.run);
    CAPTURE(row.rest);
    const Ran refused = run("calibrate --from '" + runs + row.run + "' --out '" +
                                (folder.path / "none.toml").string() + "' " + row.rest,
                            "2>&1");
    INFO(refused.out);
    CHECK(refused.status == row.status);
    CHECK(refused.out.find(row.code) != std::string::npos);
    CHECK(refused.out.find(row.says) != std::string::npos);
    CHECK(!fs::exists(folder.path / "none.toml"));
  }
  const Ran told = run("calibrate --from '" + runs + "/plain' --out '" +
                       (folder.path / "told.toml").string() + "' --machine '" + machine + "'");
  INFO(told.out);
  CHECK(told.status == 0);
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
        Row{"--set dist_env.devise=cpu", 2, "devise"},
        Row{"--from runs/first --nproc 2", 2, "--nproc is for measuring"},
        Row{"--from runs/first --seconds 2", 2, "--seconds is for measuring"},
        Row{"--from=", 2, "E0101"}, Row{"--from ''", 2, "--from is empty"},
        Row{"--machine cpu", 2, "belongs to --from"}}) {
    CAPTURE(row.arguments);
    const Ran ran = run(std::string("calibrate ") + row.arguments, "2>&1");
    INFO(ran.out);
    CHECK(ran.status == row.status);
    CHECK(ran.out.find(row.says) != std::string::npos);
  }
  // More ranks than a host has would bring it down: the refusal alone, nothing of any rank.
  const Folder folder;
  for (const char* count : {"1025", "5000"}) {
    CAPTURE(count);
    const Ran many =
        run("calibrate --json " + kQuick + "--nproc " + count + " --out '" + folder.file() + "'");
    INFO(many.out);
    CHECK(many.status == 2);
    const json::object error = json::parse(many.out).at("error").as_object();
    CHECK(error.at("code").as_string() == "E0101");
    CHECK(many.out.find("a host has 1 to 1024 ranks") != std::string::npos);
    CHECK(fs::is_empty(folder.path));
  }
  CHECK(run("calibrate -h").out.find("--seconds N") != std::string::npos);
}

}  // namespace calibrate_test
