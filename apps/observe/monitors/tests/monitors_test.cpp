// All places together, and what becomes of a run when they fail.
#include "apps/observe/monitors/monitors.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "apps/observe/monitors/sinks.h"
#include "apps/observe/monitors/tests/folder.h"

namespace monitors_test {

using namespace meshwright;
using namespace meshwright::monitor;
using monitor_tests::Folder;
using monitor_tests::has;
using monitor_tests::step_row;
using monitor_tests::validation_row;
namespace fs = std::filesystem;

namespace {

// A run that writes metrics.jsonl, and all that watches it.
struct Watched {
  Folder folder;
  std::vector<std::string> said;
  Settings settings;
  Watched() {
    settings.folder = folder.path;
    settings.facts = {.run = "first", .strategy = "ddp", .version = "0.1.0", .ranks = 1};
  }
  std::unique_ptr<Monitors> watch() {
    return std::make_unique<Monitors>(settings,
                                      [this](const std::string& line) { said.push_back(line); });
  }
  void write(Monitors& monitors, const std::string& row) const {
    std::ofstream(folder.path / "metrics.jsonl", std::ios::app | std::ios::binary) << row;
    monitors.row(row);
  }
};

int64_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

}  // namespace

TEST_CASE("metrics.csv is metrics.jsonl, also for a run that goes on and for a new column") {
  Watched run;
  run.settings.csv = true;
  {
    const auto monitors = run.watch();
    for (int64_t step = 0; step < 3; ++step) run.write(*monitors, step_row(step));
    CHECK(run.folder.read("metrics.csv").find("\r\n1,2,") != std::string::npos);
    run.write(*monitors, validation_row(2, "2.5"));
    monitors->flush();
    CHECK(run.folder.read("metrics.csv") == csv_of(run.folder.read("metrics.jsonl")));
    run.write(*monitors, step_row(3));
  }
  // A process that died has left no end: the next one makes the table from the rows that count.
  std::ofstream(run.folder.path / "metrics.jsonl") << step_row(0) << step_row(1);
  run.settings.completed = 2;
  const auto monitors = run.watch();
  CHECK(run.folder.read("metrics.csv").ends_with("2.5,\r\n"));
  run.write(*monitors, step_row(2, ", \"mfu\": 0.25"));
  run.write(*monitors, step_row(3, ", \"mfu\": 0.25"));
  monitors->end(true);
  CHECK(run.folder.read("metrics.csv") == csv_of(run.folder.read("metrics.jsonl")));
  CHECK(has(run.folder.read("metrics.csv"), "data_ms,mfu,validation_loss\r\n"));
  CHECK(has(run.folder.read("metrics.csv"), "\r\n3,4,"));
  CHECK(run.said.empty());
}

TEST_CASE("what an earlier run left is kept under the number of its metrics") {
  Folder folder;
  auto leave = [&] {
    std::ofstream(folder.path / "metrics.csv") << "x";
    fs::create_directory(folder.path / "tensorboard");
    std::ofstream(folder.path / "tensorboard/events") << "x";
  };
  leave();
  keep_earlier(folder.path, folder.path / "metrics.3.jsonl");
  leave();
  keep_earlier(folder.path, "");
  leave();
  keep_earlier(folder.path, "");
  keep_earlier(folder.path, "");  // nothing is left
  for (const char* name : {"metrics.3.csv", "metrics.1.csv", "metrics.2.csv", "tensorboard.3",
                           "tensorboard.1/events", "tensorboard.2"})
    CHECK(fs::exists(folder.path / name));
  CHECK(files_in(folder.path) == 6);
}

TEST_CASE("a full disk ends nothing: it is said once for each place, and once they work again") {
  Watched run;
  run.settings.csv = run.settings.tensorboard = true;
  run.settings.prometheus_file = (run.folder.path / "x.prom").string();
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  {
    const auto monitors = run.watch();
    // metrics.jsonl is on another disk, so to say.
    const std::string rows = step_row(0) + step_row(1) + step_row(2) + step_row(3);
    std::ofstream(run.folder.path / "metrics.jsonl") << rows;
    rlimit full = limit;
    full.rlim_cur = 10;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
    for (int64_t step = 0; step < 3; ++step) monitors->row(step_row(step));
    monitors->flush();
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(run.said.size() == 2);  // the .prom file has its second
    for (const std::string& line : run.said) {
      CAPTURE(line);
      CHECK((line.starts_with("warning: report.csv: cannot write ") ||
             line.starts_with("warning: report.tensorboard: cannot write ")));
      CHECK(has(line, run.folder.path.string()));
      CHECK(has(line, "File too large (EFBIG)"));
      CHECK(line.ends_with("; the run goes on without it"));
    }
    run.said.clear();
    monitors->row(step_row(3));  // at once: not tried yet
    CHECK(run.said.empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(1050));
    std::ofstream(run.folder.path / "metrics.jsonl", std::ios::app) << step_row(4);
    monitors->row(step_row(4));
    CHECK(run.said.size() == 2);
    for (const std::string& line : run.said) CHECK(line.starts_with("notice: report."));
    CHECK(std::any_of(run.said.begin(), run.said.end(), [](const std::string& line) {
      return line.ends_with("/tensorboard works again; 4 rows are missing");
    }));
  }
  std::signal(SIGXFSZ, before);
  CHECK(run.folder.read("metrics.csv") == csv_of(run.folder.read("metrics.jsonl")));
  CHECK(has(run.folder.read("x.prom"),
            "meshwright_completed_steps{run=\"first\","
            "strategy=\"ddp\"} 5\n"));
}

TEST_CASE("a place that cannot be is said at the start, and ends nothing") {
  Watched run;
  std::ofstream(run.folder.path / "tensorboard") << "in the way";
  fs::create_directories(run.folder.path / "metrics.csv/x");
  std::ofstream(run.folder.path / "file") << "x";
  run.settings.csv = run.settings.tensorboard = true;
  run.settings.prometheus_file = (run.folder.path / "file/x.prom").string();
  std::ofstream(run.folder.path / "metrics.jsonl") << step_row(0);
  const auto monitors = run.watch();
  REQUIRE(run.said.size() == 3);
  CHECK(has(run.said[0], "metrics.csv: Is a directory (EISDIR)"));
  CHECK(has(run.said[1], "tensorboard: File exists (EEXIST)"));
  CHECK(has(run.said[2], "file"));
  for (int64_t step = 0; step < 3; ++step) monitors->row(step_row(step));
  monitors->end(true);
  CHECK(run.said.size() == 3);
}

TEST_CASE("event files whose folder was removed begin anew") {
  Watched run;
  run.settings.tensorboard = true;
  const auto monitors = run.watch();
  monitors->row(step_row(0));
  fs::remove_all(run.folder.path / "tensorboard");
  monitors->row(step_row(1));
  REQUIRE(run.said.size() == 1);
  CHECK(has(run.said[0], "tensorboard: No such file or directory"));
  monitors->end(true);
  monitors->row("garbage\n");  // whatever comes
  CHECK(run.said.size() <= 2);
}

TEST_CASE("all files together cost a step far less than a hundredth of 10 ms") {
  Watched run;
  run.settings.csv = run.settings.tensorboard = true;
  run.settings.prometheus_file = (run.folder.path / "x.prom").string();
  const auto monitors = run.watch();
  std::vector<double> times;
  for (int64_t step = 0; step < 3000; ++step) {
    const std::string row = step_row(step, ", \"mfu\": 0.25, \"exposed_comm_ms\": 1.5, \"z\": 0.1");
    std::ofstream(run.folder.path / "metrics.jsonl", std::ios::app) << row;
    const auto begin = std::chrono::steady_clock::now();
    monitors->row(row);
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(times.begin(), times.end());
  MESSAGE("microseconds a step: median ", times[1500], ", of a hundred the worst ", times[2970]);
#ifdef NDEBUG
  CHECK(times[1500] < 100);
#endif
}

TEST_CASE(
    "a line a step: a validation stands in its step's line, null is empty, numbers are whole") {
  const std::string rows = step_row(0) + validation_row(0, "2.75") +
                           "{\"step\": 1, \"completed_steps\": 2, \"loss\": null}\n" + step_row(2);
  CHECK(csv_of(rows) ==
        "step,completed_steps,loss,grad_norm,lr,tokens,step_ms,tokens_per_second,memory_bytes,"
        "data_ms,validation_loss\r\n"
        "0,1,3,0.75,1.5e-05,2048,250.125,8187.9,1048576,2.5,2.75\r\n"
        "1,2,,,,,,,,,\r\n"
        "2,3,2.5,0.75,1.5e-05,2048,250.125,8187.9,1048576,2.5,\r\n");
}

TEST_CASE(
    "what later rows add has a column; lists keep all their numbers; quotes as RFC 4180 asks") {
  const std::string rows =
      "{\"step\": 0, \"loss\": 1}\n"
      "{\"step\": 1, \"loss\": 2, \"expert_tokens\": [3, 4], \"note\": \"a, \\\"b\\\"\"}\n";
  CHECK(csv_of(rows) ==
        "step,completed_steps,loss,expert_tokens,note,validation_loss\r\n"
        "0,1,1,,,\r\n1,2,2,3 4,\"a, \"\"b\"\"\",\r\n");
}

TEST_CASE("lines that are no rows, and one that is still being written, are left out") {
  CHECK(csv_of("garbage\n[1]\n{\"step\": -1}\n{\"step\": 4, \"loss\": 1}\n{\"step\": 5, \"lo") ==
        "step,completed_steps,loss,validation_loss\r\n4,5,1,\r\n");
  CHECK(csv_of("") == "step,completed_steps,validation_loss\r\n");
}

TEST_CASE("a line is held until nothing can come to it any more") {
  CsvLines lines(csv_columns(step_row(0)));
  const std::optional<Row> first = parse_row(step_row(0)), second = parse_row(step_row(1));
  REQUIRE((first && second));
  CHECK(lines.add(*first).empty());
  CHECK(lines.add(*second).starts_with("0,1,"));
  CHECK(lines.rest().starts_with("1,2,"));
  CHECK(lines.rest().empty());
  CHECK(lines.has_columns_for(*first));
  CHECK(!lines.has_columns_for(*parse_row(step_row(2, ", \"mfu\": 0.5"))));
}

}  // namespace monitors_test
