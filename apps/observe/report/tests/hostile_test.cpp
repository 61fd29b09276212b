// A run's folder that somebody else made: whatever its files say is text in each form of a report.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <functional>

#include "apps/observe/monitors/sinks.h"
#include "apps/observe/report/report.h"
#include "apps/observe/report/tests/run_folder.h"
#include "sdk/base/files/foreign_file.h"

namespace hostile_test {

namespace fs = std::filesystem;
namespace json = boost::json;
using namespace meshwright;
using namespace meshwright::runs;

// Markup, an end of an attribute, colours, a title of the terminal, C1, and text that turns round.
const std::string kHostile =
    "</title></script>\"'><img src=x onerror=alert(1)>\x1b[31m\x1b]0;x\x07\xc2\x9b"
    "31m\xe2\x80\xae\xe2\x81\xa6\xd8\x9c=1+1";

// Each text in it becomes hostile, as a value and, beside it, as a key; `number`: so does each
// number.
json::value hostile(const json::value& value, bool numbers) {
  if (value.is_string() || (numbers && value.is_number())) return json::value(kHostile);
  if (const json::array* array = value.if_array()) {
    json::array out;
    for (const json::value& item : *array) out.push_back(hostile(item, numbers));
    return out;
  }
  if (const json::object* object = value.if_object()) {
    json::object out;
    for (const auto& [key, item] : *object) out[key] = hostile(item, numbers);
    out[kHostile] = kHostile;
    return out;
  }
  return value;
}

void check_text(const std::string& text) {
  for (const char* bad : {"\x1b", "\x07", "\xc2\x9b", "\xe2\x80\xae", "\xe2\x81\xa6", "\xd8\x9c"}) {
    CAPTURE(bad);
    CHECK(!has(text, bad));
  }
}

TEST_CASE("no text of a run's folder is markup, steers the terminal, or is computed") {
  for (bool numbers : {false, true}) {
    CAPTURE(numbers);
    TestFolder folder;
    const fs::path run = folder.path / "a";
    write_run(run, 12);
    for (const char* file : {"plan.json", "env.json", "expert_load.json"}) {
      const std::string text = base::read_file(run / file);
      write(run / file,
            json::serialize(
                hostile(text.empty() ? json::parse(R"({"blocks": [{"block": "b", "tokens": [1, 2],
                                                          "imbalance": 1.5}]})")
                                     : json::parse(text),
                        numbers)));
    }
    write(run / "config.resolved.toml",
          "[run]\nname = " + json::serialize(json::string("x\"<img src=x onerror=alert(1)>")) +
              "\n[optimizer]\nlr = 0.5\n[\"<img src=x onerror=alert(1)>\"]\nk = \"v\"\n");
    write(run / "run.log",
          base::read_file(run / "run.log") + "2026-11-24T09:30:00Z warning: " + kHostile +
              "\n2026-11-24T09:30:00Z error[E0901]: " + kHostile + "\n" + kHostile + "\n");
    std::string rows = base::read_file(run / "metrics.jsonl");
    json::object more = json::parse(rows.substr(0, rows.find('\n'))).as_object();
    more["step"] = 12;
    more["note"] = kHostile;
    more[kHostile] = "-2+3";
    rows += json::serialize(more) + "\n";
    write(run / "metrics.jsonl", rows);
    fs::create_directories(run / "trace");
    write(run / "trace/rank_0.json",
          json::serialize(json::object{{"tid", 0}, {"ts", 1}, {"dur", 5}, {"name", kHostile}}) +
              "\n");
    fs::create_directories(run / "comm_traces");
    write(run / "comm_traces/rank_0.json",
          json::serialize(json::object{{"rank", 0}, {"host", kHostile}, {"why", kHostile}}));
    fs::create_directories(run / "checkpoints/step_00000003");
    write(run / "checkpoints/step_00000003/meta.json",
          json::serialize(json::object{{"format", kHostile}, {kHostile, kHostile}}));
    write(run / "checkpoints/latest", kHostile);

    const std::vector<RunRecord> all = {read_run(run)}, twice = {read_run(run), read_run(run)};
    for (const std::vector<RunRecord>* shown : {&all, &twice}) {
      const std::string page = html_page(*shown, "x");
      CHECK(!has(page, "<img"));
      CHECK(!has(page, "</title></script>"));
      check_text(page);
      check_text(report::screened(text_report({.colour = false, .width = 80}, *shown)));
      const std::string text = report::pretty_json(report_json(*shown));
      check_text(text);
      CHECK_NOTHROW(json::parse(text));
    }
    const std::string csv = monitor::csv_of(rows);
    check_text(csv);
    CHECK(has(csv, "'-2+3"));
    CHECK(!has(csv, ",-2+3"));
  }
}

TEST_CASE("pipes and devices in the place of a run's files are told, and never waited for") {
  for (const char* name :
       {"metrics.jsonl", "run.log", "plan.json", "env.json", "expert_load.json",
        "config.resolved.toml", "trace/rank_0.json", "comm_traces/rank_0.json",
        "comm_traces/launcher.json", "checkpoints/latest", "checkpoints/step_00000001/meta.json"})
    for (bool pipe : {true, false}) {
      CAPTURE(name);
      TestFolder folder;
      const fs::path run = folder.path / "a", file = run / name;
      write_run(run, 2);
      fs::create_directories(file.parent_path());
      fs::remove(file);
      if (pipe)
        REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
      else
        fs::create_symlink("/dev/zero", file);
      const RunRecord record = read_run(run);
      // Of what a folder may well be without nothing is said.
      const std::string all = [&] {
        std::string out;
        for (const std::string& problem : record.problems) out += problem + "\n";
        for (const auto& one : record.checkpoints) out += one.found.problem + "\n";
        return out;
      }();
      if (fs::path(name).filename() != "launcher.json" && fs::path(name).filename() != "latest")
        CHECK(has(all, "not a regular file"));
    }
}

}  // namespace hostile_test
