// meshwright calibrate as a user runs it: the file that it writes is one that plan --machine takes.
#include "ran.h"
#include "tests/contents.h"

namespace calibrate_test {

namespace {

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
      out.ran = run("calibrate --json --nproc 2 " + kQuick + "--out " + folder.quoted("here.toml"),
                    "2>/dev/null", kThreads);
      out.text = contents((folder.path / "here.toml").string());
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
  std::ofstream((folder.path / "here.toml").string()) << measured.text;
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
      run("plan configs/tp_cpu.toml --world-size 2 --json --machine " + folder.quoted("here.toml"));
  INFO(plan.out);
  REQUIRE(plan.status == 0);
  const json::object time = json::parse(plan.out).at("time").as_object();
  CHECK(time.at("seconds").to_number<double>() > 0);
  for (const json::value& guessed : time.at("machine").at("guessed").as_array())
    CHECK(!figures.at(guessed.as_string()).at("measured").as_bool());

  // What is there stays, unless it is to be replaced.
  const Ran again =
      run("calibrate " + kQuick + "--out " + folder.quoted("here.toml"), "2>&1", kThreads);
  CHECK(again.status == 2);
  CHECK(again.says("--force"));
  CHECK(contents((folder.path / "here.toml").string()) == text);
  const Ran forced =
      run("calibrate --force --dtype float32 " + kQuick + "--out " + folder.quoted("here.toml"),
          "2>/dev/null", kThreads);
  INFO(forced.out);
  REQUIRE(forced.status == 0);
  CHECK(contents((folder.path / "here.toml").string()) != text);
  // The table, and that another type was not measured.
  CHECK(forced.says("peak.bf16"));
  CHECK(forced.says("guessed"));
  CHECK(forced.says("product float32, backward"));
  CHECK_FALSE(forced.says("product bfloat16"));
}

TEST_CASE("a run corrects its machine, and a plan with the new file predicts its step") {
  REQUIRE(measured_by_two().ran.status == 0);  // before the folder of this case, which is the same
  const Folder folder;
  const std::string machine = (folder.path / "here.toml").string(),
                    runs = (folder.path / "runs").string(),
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
    return ::number(
        answer("plan " + job + "--world-size 2 --machine '" + file + "'").at("time").at("seconds"));
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
    CHECK(table.says(part));

  // A run that was told of no machine, and a machine that is none of it; then a run too short.
  REQUIRE(run(train + "--set run.name=plain --set step_scheduler.max_steps=9", "2>&1", kThreads)
              .status == 0);
  REQUIRE(run(train + "--set run.name=short --set step_scheduler.max_steps=5", "2>&1", kThreads)
              .status == 0);
  const std::string none = "' --out " + folder.quoted("none.toml") + " ";
  check_said("calibrate --from '" + runs,
             {{"/plain" + none, 2, "E0206", "--machine"},
              {"/plain" + none + "--machine h100", 2, "E0204", "no factor"},
              {"/plain" + none + "--machine h1000", 2, "E0205", "h100"},
              {"/short" + none + "--machine cpu", 2, "E0204", "2 steps"},
              {"/gone" + none, 2, "E0209", "does not exist"},
              {none, 2, "E0209", "is not the folder of a run"}});
  CHECK(!fs::exists(folder.path / "none.toml"));
  const Ran told = run("calibrate --from '" + runs + "/plain' --out '" +
                       (folder.path / "told.toml").string() + "' --machine '" + machine + "'");
  INFO(told.out);
  CHECK(told.status == 0);
}

TEST_CASE("what is wrong on the command line is refused before anything is measured") {
  check_said("calibrate ", {{"--nproc 0", 2, "E0101"},
                            {"--seconds 0", 2, "--seconds 30"},
                            {"--seconds soon", 2, "E0101"},
                            {"--dtype float16", 2, "float32"},
                            {"--out=", 2, "E0101"},
                            {"--out configs", 2, "is a folder"},
                            {"--out /nowhere/here.toml", 7, "E0705"},
                            {"job.toml", 2, "has no use for"},
                            {"--set dist_env.devise=cpu", 2, "devise"},
                            {"--from runs/first --nproc 2", 2, "--nproc is for measuring"},
                            {"--from runs/first --seconds 2", 2, "--seconds is for measuring"},
                            {"--from=", 2, "E0101"},
                            {"--from ''", 2, "--from is empty"},
                            {"--machine cpu", 2, "belongs to --from"},
                            {"-h", 0, "--seconds N"}});
  // More ranks than a host has would bring it down: the refusal alone, nothing of any rank.
  const Folder folder;
  const json::object many =
      answer("calibrate " + kQuick + "--nproc 1025 --out " + folder.quoted("here.toml"), 2);
  CHECK(many.at("error").at("code") == "E0101");
  CHECK(text(many).find("a host has 1 to 1024 ranks") != std::string::npos);
  CHECK(fs::is_empty(folder.path));
}

}  // namespace calibrate_test
