// The run folder and what a person watches: rows, whole files, lines, bars and the time left. Long
// because what is written stands beside its check.
#include "engine/train/run/metrics.h"

#include "sdk/base/terminal/progress.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"

namespace metrics_test {

namespace fs = std::filesystem;
namespace json = boost::json;
using namespace meshwright;
using namespace meshwright::train;

namespace {

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "meshwright_metrics.XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
};

StepResult result_of(int64_t step, double loss = 2.5, double norm = 0.75) {
  StepResult r;
  r.step = step;
  r.loss = loss;
  r.grad_norm = norm;
  r.lr = 1e-3;
  r.positions = 5000;
  r.tokens = 4096;
  r.count = 1500;
  return r;
}

std::string unwritable(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::output_unwritable);
    CHECK(error.key() == "run.dir");
    CHECK(!error.helps().empty());
    return error.message();
  }
  return "";
}

// What a Progress writes, as a file.
struct Screen {
  Folder folder;
  std::FILE* file = std::fopen((folder.path / "screen").c_str(), "w+");
  report::Output out{file, "the screen"};
  ~Screen() { std::fclose(file); }
  std::string text() {
    std::fflush(file);
    return base::read_file(folder.path / "screen");
  }
};

}  // namespace

TEST_CASE(
    "a row of metrics.jsonl has the keys of a step, or those of a validation, and no others") {
  Folder folder;
  RunFolder run(folder.path / "a" / "b");
  run.step(result_of(0, 5.123456789123, 1e-12),
           {12.5, 1234567, 2.5, 4, 0.41239, 3.25, 2, 1.5, 7.5, 6.25, 9, -0.75, 9.25, true});
  run.step(result_of(1, std::nan(""), std::numeric_limits<double>::infinity()), {0, 0});
  run.validation(1, 4.25);
  run.validation(2, std::nan(""), 0.125);
  std::ifstream rows(folder.path / "a" / "b" / "metrics.jsonl");
  std::string line;
  REQUIRE(std::getline(rows, line));
  json::object first = json::parse(line).as_object();
  CHECK(first.size() == 22);
  CHECK(first.at("step").as_int64() == 0);
  CHECK(first.at("completed_steps").as_int64() ==
        1);  // as the screen, the log and the folders of checkpoints count
  CHECK(first.at("loss").as_double() == doctest::Approx(5.123456789123).epsilon(1e-8));
  CHECK(first.at("grad_norm").as_double() == doctest::Approx(1e-12));
  CHECK(first.at("lr").as_double() == doctest::Approx(1e-3));
  CHECK(first.at("tokens").as_int64() == 4096);
  CHECK(first.at("step_ms").to_number<double>() == doctest::Approx(12.5));
  CHECK(first.at("tokens_per_second").to_number<double>() == doctest::Approx(4096 / 0.0125));
  CHECK(first.at("memory_bytes").as_int64() == 1234567);
  CHECK(first.at("data_ms").to_number<double>() == doctest::Approx(2.5));
  CHECK(first.at("tokens_per_second_per_rank").to_number<double>() ==
        doctest::Approx(1024 / 0.0125));
  CHECK(first.at("mfu").as_double() == doctest::Approx(0.4124));
  CHECK(first.at("exposed_comm_ms").to_number<double>() == doctest::Approx(3.25));
  CHECK(first.at("slowest_rank").as_int64() == 2);
  CHECK(first.at("slowest_ms").to_number<double>() == doctest::Approx(1.5));
  CHECK(first.at("rank_work_ms").to_number<double>() == doctest::Approx(7.5));
  CHECK(first.at("rank_work_ms_least").to_number<double>() == doctest::Approx(6.25));
  CHECK(first.at("rank_work_ms_most").to_number<double>() == doctest::Approx(9));
  CHECK(first.at("loss_z").to_number<double>() == doctest::Approx(-0.75));
  CHECK(first.at("grad_norm_z").to_number<double>() == doctest::Approx(9.25));
  CHECK(first.at("skipped").as_int64() == 1);
  CHECK(first.at("target_tokens").as_int64() == 1500);
  REQUIRE(std::getline(rows, line));
  json::object second = json::parse(line).as_object();  // JSON has no nan
  CHECK(second.at("loss").is_null());
  CHECK(second.at("grad_norm").is_null());
  CHECK(second.at("tokens_per_second").to_number<double>() == 0);
  CHECK(second.size() == first.size());
  for (const char* unknown :
       {"mfu", "exposed_comm_ms", "slowest_rank", "slowest_ms", "rank_work_ms",
        "rank_work_ms_least", "rank_work_ms_most", "loss_z", "grad_norm_z"})
    CHECK(second.at(unknown).is_null());
  CHECK(second.at("skipped").as_int64() == 0);
  REQUIRE(std::getline(rows, line));
  CHECK(line == "{\"step\": 1, \"completed_steps\": 2, \"validation_loss\": 4.25}");
  REQUIRE(std::getline(rows, line));
  CHECK(line ==
        "{\"step\": 2, \"completed_steps\": 3, \"validation_loss\": null, "
        "\"validation_auxiliary_loss\": 0.125}");
  CHECK(!std::getline(rows, line));
}

TEST_CASE("metrics of an earlier run are kept under a name of their own, the log goes on") {
  Folder folder;
  fs::path path = folder.path / "run";
  {
    RunFolder run(path);
    CHECK(run.kept().empty());
    run.log("one");
  }
  {
    RunFolder run(path);  // nothing was measured
    CHECK(run.kept().empty());
    run.validation(0, 1);
    run.log("two");
  }
  for (int n : {1, 2}) {
    RunFolder run(path);
    CHECK(run.kept() == (path / ("metrics." + std::to_string(n) + ".jsonl")).string());
    CHECK(base::read_file(run.kept()) ==
          (n == 1 ? "{\"step\": 0, \"completed_steps\": 1, \"validation_loss\": 1}\n"
                  : "{\"step\": 7, \"completed_steps\": 8, \"validation_loss\": 2}\n"));
    run.validation(7, 2);
  }
  // Each line has its time before it: "2026-11-24T09:30:00Z one".
  const std::string log = base::read_file(path / "run.log");
  CHECK(log.size() == 2 * std::string("2026-11-24T09:30:00Z one\n").size());
  CHECK(log.substr(19, 6) == "Z one\n");
  CHECK(log.ends_with("Z two\n"));
}

TEST_CASE("whole files replace what was there and leave nothing beside them") {
  Folder folder;
  RunFolder run(folder.path);
  run.put("plan.json", std::string(100000, 'x'));
  run.put("plan.json", "{}");
  CHECK(base::read_file(folder.path / "plan.json") == "{}");
  fs::create_directory(folder.path / "taken");
  CHECK(unwritable([&] { run.put("taken", "x"); }) ==
        "cannot rename " + (folder.path / "taken").string() + ": Is a directory (EISDIR)");
  CHECK(unwritable([&] { run.put("no/such", "x"); }).find("No such file or directory") !=
        std::string::npos);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path))
    CHECK(!entry.path().filename().string().ends_with(".tmp"));
}

TEST_CASE("files that are removed while they are written go on as new ones, which is told") {
  Folder folder;
  std::vector<std::string> told;
  const fs::path path = folder.path / "run";
  RunFolder run(path, std::nullopt, [&](const std::string& text) { told.push_back(text); });
  run.log("one");
  fs::remove_all(path);
  run.validation(4, 2.5);
  run.log("two");
  run.log("three");
  CHECK(base::read_file(path / "metrics.jsonl").find("\"completed_steps\": 5") !=
        std::string::npos);
  const std::string log = base::read_file(path / "run.log");
  CHECK(log.find("two") < log.find("three"));
  REQUIRE(told.size() == 2);
  CHECK(told[0] == "warning: " + (path / "metrics.jsonl").string() +
                       " was removed while the run wrote it: it goes on in a new file");
}

TEST_CASE("what cannot be written is an error that names path and reason") {
  Folder folder;
  std::ofstream(folder.path / "file") << "x";
  CHECK(unwritable([&] { RunFolder run(folder.path / "file" / "run"); }) ==
        "cannot write " + (folder.path / "file" / "run").string() + ": Not a directory (ENOTDIR)");
  for (const char* name : {"metrics.jsonl", "run.log"}) {
    fs::path path = folder.path / name;
    fs::remove(path);
    fs::create_directories(path / "sub");
    CHECK(unwritable([&] { RunFolder run(folder.path); }) ==
          "cannot write " + path.string() + ": Is a directory (EISDIR)");
    fs::remove_all(path);
    fs::create_symlink("/dev/full", path);
    CHECK(unwritable([&] {
            RunFolder run(folder.path);
            run.log("x");
            run.step(result_of(0), {1, 1});
          }) == "cannot write " + path.string() + ": No space left on device (ENOSPC)");
    CHECK(fs::is_symlink(path));
    fs::remove(path);
  }
}

TEST_CASE(
    "a full disk that the run is to outlive: lines wait for room, warned about once, nothing is "
    "half-written and nothing is lost") {
  Folder folder;
  std::vector<std::string> warnings;
  auto before =
      std::signal(SIGXFSZ, SIG_IGN);  // a limit of the size of files is a disk that is full
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  {
    RunFolder run(folder.path / "run");
    run.outlive_full_disks([&](const std::string& text) { warnings.push_back(text); });
    fs::path metrics = run.path() / "metrics.jsonl";
    run.step(result_of(0), {1, 1});
    std::string one = base::read_file(metrics);
    rlimit full = limit;
    full.rlim_cur = one.size() + 20;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
    for (int64_t step = 1; step < 4; ++step) {
      run.step(result_of(step), {1, 1});
      CHECK(base::read_file(metrics) == one);
    }
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find("cannot write " + metrics.string() + ": File too large") == 0);
    run.step(result_of(4), {1, 1});
    REQUIRE(warnings.size() == 2);
    CHECK(warnings[1] == metrics.string() + " is written again: 4 lines had waited");
    std::string rows = base::read_file(metrics);
    for (int64_t step = 0; step < 5; ++step)
      CHECK(rows.find("{\"step\": " + std::to_string(step) + ",") != std::string::npos);
    CHECK(std::count(rows.begin(), rows.end(), '\n') == 5);
    // What waits at the end is written if it can be.
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
    run.step(result_of(5), {1, 1});
    CHECK(warnings.size() == 3);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  std::string rows = base::read_file(folder.path / "run" / "metrics.jsonl");
  CHECK(std::count(rows.begin(), rows.end(), '\n') == 6);
  std::signal(SIGXFSZ, before);
}

TEST_CASE("durations") {
  for (auto [seconds, text] :
       std::vector<std::pair<double, std::string>>{{0, "0 s"},
                                                   {0.4, "0 s"},
                                                   {12, "12 s"},
                                                   {59.4, "59 s"},
                                                   {59.6, "1 min 00 s"},
                                                   {200, "3 min 20 s"},
                                                   {3599.9, "1 h 00 min"},
                                                   {3720, "1 h 02 min"},
                                                   {360000, "100 h 00 min"},
                                                   {-1, "?"},
                                                   {std::nan(""), "?"},
                                                   {std::numeric_limits<double>::infinity(), "?"}})
    CHECK(report::human_duration(seconds) == text);
}

TEST_CASE(
    "elsewhere than on a terminal: the first step and the last, with the time left, and what there "
    "is to say") {
  Screen screen;
  Progress progress(screen.out, {false, true, 80}, false, 101);
  for (int64_t step = 0; step <= 100; ++step) progress.step(result_of(step), {2000, 0});
  progress.validation(100, 2.25);
  progress.validation(100, std::nan(""));
  progress.say("done");
  progress.finish();
  CHECK(screen.text() ==
        "step 1/101  loss 2.5000  grad norm 0.750  lr 1.00e-03  2,048 tokens/s  2000 ms  "
        "3 min 20 s left\n"
        "step 101/101  loss 2.5000  grad norm 0.750  lr 1.00e-03  2,048 tokens/s  2000 ms\n"
        "step 101/101  validation loss 2.2500\nstep 101/101  validation loss n/a\ndone\n");
}

TEST_CASE("report.step_details prints all that the log has, with the time left") {
  Screen screen;
  Progress progress(screen.out, {false, true, 80}, false, 101, /*details=*/true);
  progress.step(result_of(0), {2000, 0});
  CHECK(screen.text() == Progress::line(result_of(0), {2000, 0}, 101) + "  3 min 20 s left\n");
}

TEST_CASE("a run of a few steps has a line for each, which a terminal is wide enough for") {
  for (bool live : {false, true})
    for (int width : {30, 60, 80, 200}) {
      CAPTURE(width);
      Screen screen;
      Progress progress(screen.out, {false, true, width}, live, 19);
      for (int64_t step = 0; step < 19; ++step) progress.step(result_of(step), {2000, 0});
      progress.finish();
      std::istringstream lines(screen.text());
      std::string line;
      int64_t count = 0;
      for (; std::getline(lines, line); ++count) {
        CHECK(line.starts_with("step " + std::to_string(count + 1) + "/19  loss 2.5000"));
        if (live) CHECK(line.size() < static_cast<size_t>(width));
      }
      CHECK(count == 19);
    }
}

TEST_CASE("the time left follows the steps, smoothed") {
  Screen screen;
  Progress progress(screen.out, {false, false, 200}, true, 1000);
  progress.step(result_of(0), {1000, 0});
  CHECK(screen.text().find("16 min 39 s left") != std::string::npos);
  for (int64_t step = 1; step < 999; ++step) progress.step(result_of(step), {100, 0});
  progress.step(result_of(999), {100, 0});
  CHECK(screen.text().find("1000/1000  loss 2.5000  40,960 tok/s  0 s left") != std::string::npos);
}

TEST_CASE(
    "on a terminal: one line that is drawn again, no wider than the terminal, with a bar where "
    "there is room") {
  for (bool unicode : {false, true})
    for (int width : {1, 10, 40, 80, 200}) {
      CAPTURE(width);
      Screen screen;
      Progress progress(screen.out, {false, unicode, width}, true, 40);
      progress.step(result_of(0), {100, 0});
      progress.say("a word");
      progress.step(result_of(39), {100, 0});
      progress.finish();
      std::string text = screen.text();
      size_t lines = 0;
      for (size_t at = 0; at < text.size();) {
        size_t end = std::min(text.find_first_of("\r\n", at), text.size());
        std::string line = text.substr(at, end - at);
        if (line.starts_with("\x1b[K")) line.erase(0, 3);
        if (line != "a word")
          CHECK(report::display_width(line) < static_cast<size_t>(std::max(width, 1)));
        lines += line.empty() ? 0 : 1;
        at = end + 1;
      }
      CHECK(lines == (width == 1 ? 1 : 3));
      CHECK(text.find("\r\x1b[Ka word\n") != std::string::npos);
      CHECK(text.ends_with("\n"));
      if (width == 200) CHECK(text.find(unicode ? "━━━━" : "====") != std::string::npos);
    }
}

TEST_CASE("on a terminal the losses of the last step stay, whatever is told after it") {
  // What a terminal shows in the end: a line that is wiped leaves nothing.
  auto shown = [](const std::string& text) {
    std::vector<std::string> lines{""};
    for (size_t at = 0; at < text.size(); ++at)
      if (text.compare(at, 4, "\r\x1b[K") == 0) {
        lines.back().clear();
        at += 3;
      } else if (text[at] == '\n') {
        lines.emplace_back();
      } else {
        lines.back() += text[at];
      }
    return lines;
  };
  const report::Style style{false, false, 43};
  {
    Screen screen;
    Progress progress(screen.out, style, true, 30);
    for (int64_t step = 0; step < 3; ++step)
      progress.step(result_of(27 + step, 3 - static_cast<double>(step)), {100, 0});
    progress.validation(29, 2.25);
    progress.say("checkpoint");
    progress.finish();
    progress.say("done");
    CHECK(shown(screen.text()) ==
          std::vector<std::string>{"30/30  loss 1.0000  40,960 tok/s  0 s left",
                                   "step 30/30  validation loss 2.2500", "checkpoint", "done", ""});
  }
  // A run that is stopped before its last step, by the line of the last one it has done.
  Screen screen;
  Progress progress(screen.out, style, true, 100);
  for (int64_t step = 0; step < 2; ++step)
    progress.step(result_of(step, 3 - static_cast<double>(step)), {1000, 0});
  progress.say("warning");
  progress.finish();
  progress.say("stopped");
  CHECK(shown(screen.text()) ==
        std::vector<std::string>{"warning", "2/100  loss 2.0000  1 min 38 s left", "stopped", ""});
}

TEST_CASE(
    "on a narrow terminal the line has whole fields only: validation goes first, then the speed, "
    "the time left, the loss") {
  // What the last drawing leaves on the screen.
  auto drawn = [](int width) {
    Screen screen;
    Progress progress(screen.out, {false, false, width}, true, 100000);
    progress.validation(12344, 2.25);
    progress.step(result_of(12344), {100, 0});
    std::string text = screen.text();
    return text.substr(text.rfind("\x1b[K") + 3);
  };
  CHECK(drawn(80).ends_with(
      "12345/100000  loss 2.5000  validation 2.2500  40,960 tok/s  2 h 26 min left"));
  CHECK(drawn(60) == "12345/100000  loss 2.5000  40,960 tok/s  2 h 26 min left");
  CHECK(drawn(50) == "12345/100000  loss 2.5000  2 h 26 min left");
  CHECK(drawn(38) == "12345/100000  loss 2.5000");
  CHECK(drawn(20) == "12345/100000");
  CHECK(drawn(12) == "");  // half a number would be a wrong one
}

TEST_CASE(
    "a step's line tells what the ranks did with its time; on a terminal as much of it as there is "
    "room for beside a short bar") {
  StepCost cost{.step_ms = 841,
                .data_ms = 2.4,
                .ranks = 8,
                .mfu = 0.4127,
                .exposed_comm_ms = 31.2,
                .slowest_rank = 3,
                .slowest_ms = 12.3};
  const std::string line =
      "step 12/100  loss 2.5000  grad norm 0.750  lr 1.00e-03  4,870 tokens/s (608 a rank)  841 "
      "ms  mfu 41.3%  data 2 ms  comm 31 ms  slowest rank 3 (+12 ms)";
  CHECK(Progress::line(result_of(11), cost, 100) == line);
  // Once it is known what is usual.
  StepCost scored = cost;
  scored.loss_z = 0.24, scored.grad_norm_z = -1.36;
  CHECK(Progress::line(result_of(11), scored, 100) == line + "  loss z +0.2  norm z -1.4");
  StepCost alone{.step_ms = 841, .exposed_comm_ms = 0, .skipped = true};
  CHECK(Progress::line(result_of(11), alone, 100)
            .ends_with("  841 ms  mfu n/a  data 0 ms  left out"));
  auto drawn = [&](int width) {
    Screen screen;
    Progress progress(screen.out, {false, false, width}, true, 100);
    progress.step(result_of(11), cost);
    std::string text = screen.text();
    text = text.substr(text.rfind("\x1b[K") + 3);
    CHECK(text.size() < static_cast<size_t>(width));
    return text;
  };
  const std::string base = "12/100  loss 2.5000  4,870 tok/s  1 min 14 s left";
  CHECK(drawn(60) == base);
  CHECK(drawn(80).ends_with(base + "  norm 0.750"));
  CHECK(drawn(80).starts_with("[") == drawn(200).starts_with("["));  // both have a bar
  CHECK(drawn(90).ends_with(base + "  norm 0.750  841 ms"));
  CHECK(drawn(200).ends_with(base + "  norm 0.750  841 ms  lr 1.00e-03  mfu 41.3%  comm 31 ms  "
                                    "slowest rank 3 (+12 ms)"));
}

TEST_CASE("an output that takes no more is given up, and the run goes on") {
  std::FILE* full = std::fopen("/dev/full", "w");
  REQUIRE(full != nullptr);
  {
    report::Output out(full, "standard output");
    Progress progress(out, {false, true, 80}, false, 2);
    CHECK_NOTHROW(progress.step(result_of(0), {1, 1}));
    CHECK_NOTHROW(progress.say("more"));
    CHECK_NOTHROW(progress.finish());
  }
  CHECK(std::fclose(full) == 0);  // nothing is tried again
}

TEST_CASE("a run that continues keeps the rows of the steps before, whole lines only") {
  Folder folder;
  {
    RunFolder run(folder.path);
    for (int64_t step = 0; step < 6; ++step) run.step(result_of(step), {1, 1});
    run.validation(3, 2.5);
    run.validation(4, 2.25);
    run.sync();
  }
  std::ofstream(folder.path / "metrics.jsonl", std::ios::app)
      << "{\"step\": 2, \"lo";  // cut off by a crash
  std::string before = base::read_file(folder.path / "metrics.jsonl");
  {
    RunFolder run(folder.path, 4);
    CHECK(run.kept().empty());
    run.step(result_of(4), {1, 1});
  }
  std::ifstream in(folder.path / "metrics.jsonl");
  std::vector<std::string> steps;
  for (std::string line; std::getline(in, line);)
    steps.push_back(line.substr(0, line.find(',')) +
                    (line.find("validation") == std::string::npos ? "" : " v"));
  CHECK(steps == std::vector<std::string>{"{\"step\": 0", "{\"step\": 1", "{\"step\": 2",
                                          "{\"step\": 3", "{\"step\": 3 v", "{\"step\": 4"});
  CHECK(before.rfind(base::read_file(folder.path / "metrics.jsonl").substr(0, 100), 0) == 0);
}

}  // namespace metrics_test
