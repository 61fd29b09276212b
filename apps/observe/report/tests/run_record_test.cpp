#include "apps/observe/report/run_record.h"

#include <doctest/doctest.h>

#include <limits>

#include "apps/observe/report/tests/run_folder.h"

using namespace meshwright;
using namespace meshwright::runs;

TEST_CASE("what a run has left is read back") {
  TestFolder folder;
  write_run(folder.path / "a", 10);
  const RunRecord run = read_run(folder.path / "a");
  CHECK(run.problems.empty());
  CHECK(run.steps() == 10);
  CHECK(run.state() == "done");
  CHECK(run.metrics.tokens == 1000);
  CHECK(run.metrics.of(Quantity::loss).values.front() == doctest::Approx(5));
  CHECK(run.metrics.of(Quantity::loss).steps.front() == 1);  // completed steps
  CHECK(run.metrics.of(Quantity::memory_bytes).size() == 10);
  CHECK(run.metrics.of(Quantity::validation_loss).empty());
  CHECK(run.setting("optimizer.lr") == "0.001");
  CHECK(run.started == "2026-11-24T09:00:00Z");
  CHECK(run.ended == "2026-11-24T09:01:00Z");
}

TEST_CASE("rows that are broken are left out and told, the others stay") {
  struct Row {
    const char *line, *told;
  };
  for (const Row& one : {Row{"{\"step\": 1, \"loss\": 4.", "line 2 is not valid JSON"},
                         Row{"[1, 2]", "line 2 is not a row: it has no step"},
                         Row{"{\"loss\": 4}", "line 2 is not a row: it has no step"},
                         Row{"{\"step\": 1, \"loss\": \"low\"}", "line 2 loss is no number"},
                         Row{"{\"step\": 0, \"loss\": 4}", "line 2 goes back to step 0"},
                         Row{"\xff\xfe\x00", "line 2 is not valid JSON"}}) {
    CAPTURE(one.line);
    TestFolder folder;
    write(folder.path / "metrics.jsonl", row(0, 5) + one.line + "\n" + row(2, 3));
    std::vector<std::string> problems;
    const Metrics metrics = read_metrics(folder.path / "metrics.jsonl", problems);
    REQUIRE(problems.size() == 1);
    CHECK(has(problems[0], one.told));
    CHECK(metrics.of(Quantity::loss).steps == std::vector<double>{1, 3});
  }
}

TEST_CASE("a row that is only half written is told, a null is a value that was not finite") {
  TestFolder folder;
  write(folder.path / "metrics.jsonl",
        row(0, 5) + row(1, std::nan("")) + "{\"step\": 2, \"completed_steps\": 3, \"lo");
  std::vector<std::string> problems;
  const Metrics metrics = read_metrics(folder.path / "metrics.jsonl", problems);
  REQUIRE(problems.size() == 1);
  CHECK(has(problems[0], "ends in the middle of line 3"));
  REQUIRE(metrics.of(Quantity::loss).size() == 2);
  CHECK(std::isnan(metrics.of(Quantity::loss).values[1]));
}

TEST_CASE("a folder that is half there is read as far as it goes, and each lack is told") {
  TestFolder folder;
  write(folder.path / "a/run.log", kLog);
  write(folder.path / "a/plan.json", "{\"strategy\": ");
  write(folder.path / "a/config.resolved.toml", "[optimizer\n");
  const RunRecord run = read_run(folder.path / "a");
  std::string all;
  for (const std::string& problem : run.problems) all += problem + "\n";
  for (const char* part : {"metrics.jsonl is not there", "plan.json is damaged",
                           "env.json is not there", "config.resolved.toml is damaged"}) {
    CAPTURE(part);
    CHECK(has(all, part));
  }
  CHECK(run.events.size() == 6);
}

TEST_CASE("what is no run is refused with the runs that there are") {
  TestFolder folder;
  write_run(folder.path / "first", 1);
  write(folder.path / "file", "x");
  struct Row {
    const char *name, *told, *help;
  };
  for (const Row& one :
       {Row{"frist", "does not exist", "did you mean"}, Row{"file", "is not a folder", ""},
        Row{"", "neither metrics.jsonl nor run.log", "name runs: "}}) {
    CAPTURE(one.name);
    const Error error =
        scratch::caught([&] { read_run(*one.name == 0 ? folder.path : folder.path / one.name); });
    CHECK(error.code() == ErrorCode::file_unreadable);
    CHECK(has(error.message(), one.told));
    REQUIRE(!error.helps().empty());
    CHECK(has(error.helps()[0], one.help));
  }
}

TEST_CASE("a log becomes events with their times and steps") {
  const RunLog log = parse_log(kLog);
  struct Row {
    Event::Kind kind;
    int64_t step;
    const char* time;
  };
  const Row rows[] = {{Event::Kind::start, 0, "2026-11-24T09:00:00Z"},
                      {Event::Kind::saved, 2, "2026-11-24T09:00:11Z"},
                      {Event::Kind::fault, 2, "2026-11-24T09:00:20Z"},
                      {Event::Kind::restart, 2, "2026-11-24T09:00:21Z"},
                      {Event::Kind::resume, 2, "2026-11-24T09:00:30Z"},
                      {Event::Kind::done, 2, "2026-11-24T09:01:00Z"}};
  REQUIRE(log.events.size() == std::size(rows));
  for (size_t i = 0; i < std::size(rows); ++i) {
    CAPTURE(i);
    CHECK(log.events[i].kind == rows[i].kind);
    CHECK(log.events[i].step == rows[i].step);
    CHECK(log.events[i].time == rows[i].time);
  }
  CHECK(log.events[2].text.ends_with("\n = help: look at <its> log"));
}

TEST_CASE("a run took the time that it ran, not that between its end and its next start") {
  const RunLog log = parse_log(
      "2026-11-24T09:00:00Z fsdp2 on 2 ranks: A, 5 parameters; batch 1 x 1 x 1 samples of 8 "
      "tokens\n"
      "2026-11-24T09:01:00Z step 1/4  loss 4.5\n"
      "2026-11-24T09:02:00Z step 2/4  loss 4.4\n"
      "2026-11-25T09:00:00Z continues after step 2: runs/a/checkpoints/step_00000002\n"
      "2026-11-25T09:00:01Z fsdp2 on 2 ranks: A, 5 parameters; batch 1 x 1 x 1 samples of 8 "
      "tokens\n"
      "2026-11-25T09:01:01Z step 3/4  loss 4.3\n"
      "2026-11-25T09:02:01Z done: 4 steps\n");
  CHECK(log.seconds == 240);
}

TEST_CASE("every line of a log that tells of something is known, with a time and without") {
  using Kind = Event::Kind;
  const std::pair<Kind, const char*> rows[] = {
      {Kind::start, "moe_ep on 1 rank: X, 5 parameters; batch 1 x 1 x 1 samples of 2 tokens"},
      {Kind::notice, "notice: x"},
      {Kind::notice, "verdict: rank 1 left no record (it was killed)"},
      {Kind::notice, "an earlier run of this name left metrics; they are now metrics.1.jsonl"},
      {Kind::notice, "checkpoints that this run does not continue are now in checkpoints.1"},
      {Kind::warning, "warning: x"},
      {Kind::warning, "step 3/9  no checkpoint: no room"},
      {Kind::saved, "step 3/9  checkpoint runs/a/checkpoints/step_00000003  1 MiB in 0.10 s"},
      {Kind::fault, "error[E0801]: the loss is nan"},
      {Kind::fault, "[rank 1] error[E0601]: rank 1 waited 9 s in vain for all_reduce"},
      {Kind::warning, "[rank 12] warning: x"},
      {Kind::warning, "ranks 1 and 3: warning: x"},
      {Kind::notice, "rank 2: notice: x"},
      {Kind::fault, "rank 0 failed with exit status 5"},
      {Kind::fault, "rank 1 failed first; the other is ended"},
      {Kind::fault,
       "rank 2 (process 9) is stopped by a signal (SIGSTOP, SIGTTIN) or a debugger, and the others "
       "waited; all are ended"},
      {Kind::fault, "the run before, process 7 on h since x, ended without a word: it was killed"},
      {Kind::restart, "restart 1 of 3 after a signal"},
      {Kind::notice, "no restart is left of 3"},
      {Kind::change, "continues with optimizer.lr = 0.1 (was 0.2)"},
      {Kind::stop, "SIGTERM: saved step 3 of 9, ending; the same command goes on from there"},
      {Kind::stop, "stopped by SIGINT"},
      {Kind::resume, "continues after step 7: runs/a/checkpoints/step_00000007"},
      {Kind::done, "done: 9 steps in 3 s; results in runs/a"}};
  for (const auto& [kind, line] : rows)
    for (const char* time : {"2026-11-24T09:00:00Z ", ""}) {
      CAPTURE(line);
      CAPTURE(time);
      const RunLog log = parse_log(std::string(time) + line + "\n");
      REQUIRE(log.events.size() == 1);
      CHECK(log.events[0].kind == kind);
    }
  for (const char* line :
       {"step 3/9  loss 4.1  grad norm 0.1", "step 3  validation loss 4.2", "data: 3 files",
        "[rank 1] [rank two] warning: x", "rank 1: x", "rank ", "notice: not written to its en"}) {
    CAPTURE(line);
    CHECK(parse_log(std::string(line) + (line[0] == 'n' ? "" : "\n")).events.empty());
  }
}

TEST_CASE("what a rank other than the first says is one fault with what the launcher adds") {
  const std::string fault =
      "[rank 1] error[E0601]: rank 1 waited 9 s in vain for all_reduce: no word from rank 2\n"
      "  = help: look there\n"
      "rank 2 (process 9) is stopped by a signal (SIGSTOP, SIGTTIN) or a debugger, and the others "
      "waited; all are ended";
  std::string log = "2026-11-24T09:00:00Z " + fault + "\n2026-11-24T09:00:01Z verdict: x\n";
  log.insert(log.find("  = help"), "[rank 1] ");
  const std::vector<Event> events = parse_log(log).events;
  REQUIRE(events.size() == 2);
  CHECK(events[0].kind == Event::Kind::fault);
  CHECK(events[0].text == fault);
  CHECK(events[1].text == "verdict: x");
  RunRecord run;
  run.events = events;
  CHECK(run.state() == "failed");
}

TEST_CASE("of a name that was used before only the newest run is told of") {
  const std::string start = " ddp on 1 rank: X, 5 parameters; batch 1\n";
  const RunLog log =
      parse_log("2026-11-24T08:00:00Z" + start +
                "2026-11-24T08:00:01Z step 9/9  loss 4.1\n"
                "2026-11-24T08:00:02Z error[E0801]: x\n"
                "2026-11-24T09:00:00Z an earlier run of this name left metrics; they "
                "are now metrics.1.jsonl\n"
                "2026-11-24T09:00:01Z" +
                start);
  REQUIRE(log.events.size() == 2);
  CHECK(log.events[0].kind == Event::Kind::notice);
  CHECK(log.events[1].kind == Event::Kind::start);
  CHECK(log.events[1].step == 0);
  CHECK(log.first == "2026-11-24T09:00:00Z");
}

TEST_CASE("the state of a run is what was said of it last") {
  auto state_of = [](const std::string& log) {
    RunRecord run;
    run.events = parse_log(log).events;
    return run.state();
  };
  const std::string start = "ddp on 1 rank: X, 5 parameters; batch 1\n";
  CHECK(state_of("") == "unfinished");
  CHECK(state_of(start) == "unfinished");
  CHECK(state_of(start + "done: 3 steps in 1 s\n") == "done");
  CHECK(state_of(start + "error[E0801]: x\nwarning: y\n") == "failed");
  CHECK(state_of(start + "error[E0801]: x\nno restart is left of 3\n") == "failed");
  CHECK(state_of(start + "SIGTERM: saved step 3 of 9, ending\n") == "stopped");
  CHECK(state_of(start + "stopped by SIGTERM\ncontinues after step 3: x\n" + start) ==
        "unfinished");
}

TEST_CASE("a trace says where time went: waiting before all else, messages beside computation") {
  TestFolder folder;
  // us      0    10   20   30   40   50
  // compute |---------|         |----|     "forward", "optimizer"
  // gather       |---------|
  // wait                   |----|           and nothing from 50 to 60, where a message ends
  write(folder.path / "rank_3.json",
        R"([{"ph":"M","name":"thread_name","pid":3,"tid":0,"args":{"name":"compute"}},
{"ph":"X","pid":3,"tid":0,"name":"forward","ts":100,"dur":20},
{"ph":"X","pid":3,"tid":1,"name":"all_gather of a","ts":110,"dur":20},
{"ph":"X","pid":3,"tid":3,"name":"wait for all_gather of a","ts":130,"dur":10},
{"ph":"X","pid":3,"tid":0,"name":"optimizer","ts":140,"dur":10},
{"ph":"X","pid":3,"tid":3,"name":"all_reduce of norms","ts":150,"dur":10},
{"ph":"X","pid":3,"tid":0,"name":"cut of)");
  write(folder.path / "rank_x.json", "[]");
  write(folder.path / "rank_4.json", "[]");
  std::vector<std::string> problems;
  const std::vector<RankTimes> times = read_traces(folder.path, problems);
  REQUIRE(times.size() == 1);
  CHECK(times[0].rank == 3);
  CHECK(times[0].steps == 1);
  CHECK(times[0].computing == 20);   // 100 to 110 and 140 to 150
  CHECK(times[0].overlapped == 10);  // 110 to 120
  CHECK(times[0].waiting == 10);
  CHECK(times[0].rest == 20);  // 120 to 130 and 150 to 160
  CHECK(times[0].communicating == 30);
  REQUIRE(problems.size() == 1);
  CHECK(has(problems[0], "rank_4.json has no bars"));
}

TEST_CASE("a long series becomes few points that keep its peaks and what was not finite") {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Series series;
  for (int step = 1; step <= 100'000; ++step)
    series.add(step, step == 31'415 ? 99 : step == 27'182 ? -7 : step == 50'000 ? kNaN : 1);
  const std::vector<Point> points = thinned(series, 320);
  CHECK(points.size() <= 320);
  CHECK(points.size() >= 300);
  double most = 0, least = 0;
  size_t other = 0;
  for (const Point& point : points) {
    most = std::max(most, point.most);
    least = std::min(least, point.least);
    other += point.other;
    CHECK(point.least <= point.mean);
    CHECK(point.mean <= point.most);
    if (point.most == 99) CHECK(std::abs(point.step - 31'415) < 320);
  }
  CHECK(most == 99);
  CHECK(least == -7);
  CHECK(other == 1);
}

TEST_CASE("a series that is short enough keeps every step") {
  Series series;
  for (int step : {2, 4, 7}) series.add(step, step * 10);
  const std::vector<Point> points = thinned(series, 3);
  REQUIRE(points.size() == 3);
  CHECK(points[1].step == 4);
  CHECK(points[1].mean == 40);
  CHECK(points[1].least == points[1].most);
  CHECK(thinned(series, 1).size() == 1);
  CHECK(thinned(Series(), 5).empty());
}

TEST_CASE("a summary tells of finite values only, and how many others there were") {
  Series series;
  CHECK(!summary_of(series));
  series.add(1, std::numeric_limits<double>::infinity());
  CHECK(!summary_of(series));
  for (int step = 2; step <= 5; ++step) series.add(step, step == 4 ? 50 : step);
  const Summary s = summary_of(series).value();
  CHECK(s.finite == 4);
  CHECK(s.other == 1);
  CHECK(s.first == 2);
  CHECK(s.last == 5);
  CHECK(s.least_at == 2);
  CHECK(s.most == 50);
  CHECK(s.most_at == 4);
  CHECK(s.median == 4);  // of 2, 3, 5 and 50
}
