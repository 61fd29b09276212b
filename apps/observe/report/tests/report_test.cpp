// The three forms of a report.
#include "apps/observe/report/report.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <ctime>
#include <set>

#include "sdk/base/files/foreign_file.h"

#include "apps/observe/report/chart.h"
#include "apps/observe/report/pictures.h"
#include "apps/observe/report/tests/run_folder.h"

using namespace meshwright;
using namespace meshwright::runs;

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t out = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++out;
  return out;
}

// What a page draws; how it does, tests/report looks at in a browser.
boost::json::object data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return boost::json::parse(page.substr(at, page.find("</script>", at) - at)).as_object();
}

// nullptr: the page has no such chart.
const boost::json::object* chart_of(const boost::json::object& data, std::string_view key) {
  for (const boost::json::value& chart : data.at("charts").as_array())
    if (chart.at("key").as_string() == key) return &chart.as_object();
  return nullptr;
}
const boost::json::array& points_of(const boost::json::object& data, std::string_view key) {
  return chart_of(data, key)->at("lines").at(0).at("points").as_array();
}

}  // namespace

TEST_CASE("100,000 steps are read and drawn in under 2 s, the page is below 3 MB, peaks stay") {
  TestFolder folder;
  write_run(folder.path / "long", 100'000);
  std::string rows = base::read_file(folder.path / "long/metrics.jsonl");
  const std::string peak = row(61'803, 2.0);
  REQUIRE(has(rows, peak.substr(0, 60)));
  const size_t at = rows.find("{\"step\": 61803,");
  rows.replace(at, rows.find('\n', at) + 1 - at, row(61'803, 123.456));
  write(folder.path / "long/metrics.jsonl", rows);
  // Of the processor: what else runs on the machine takes time too.
  const std::clock_t begin = std::clock();
  const std::string page = html_page({read_run(folder.path / "long")}, "2026-11-24T10:00:00Z");
  const double ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  MESSAGE("read and drawn in ", ms, " ms, ", page.size(), " bytes");
#ifdef NDEBUG
  CHECK(ms < 2000);
#endif
  CHECK(page.size() < 3'000'000);
  const boost::json::object data = data_of(page);
  double most = 0;
  for (const boost::json::value& point : points_of(data, "loss"))
    if (point.as_array().size() > 3) most = std::max(most, point.at(3).to_number<double>());
  CHECK(most == 123.456);
  CHECK(has(page, "most 123.5 at step 61,804"));
}

TEST_CASE("a page has every chart, its pictures, and no reference to anything outside of it") {
  TestFolder folder;
  write_run(folder.path / "a", 40);
  write_run(folder.path / "b<&>", 30);
  write(folder.path / "b<&>/config.resolved.toml", "[optimizer]\nlr = 0.5\n[run]\nname = \"b\"\n");
  const std::string page =
      html_page({read_run(folder.path / "a"), read_run(folder.path / "b<&>")}, "x");
  const boost::json::object data = data_of(page);
  for (const char* key : {"loss", "grad_norm", "lr", "tokens_per_second", "step_ms", "mfu",
                          "rank_work_ms", "exposed_comm_ms", "slowest_ms", "memory_bytes"}) {
    CAPTURE(key);
    REQUIRE(chart_of(data, key) != nullptr);
    CHECK(chart_of(data, key)->at("lines").as_array().size() == 2);
  }
  CHECK(chart_of(data, "validation_loss") == nullptr);  // there are none
  for (const boost::json::value& run : data.at("runs").as_array()) {
    const boost::json::object& plan = run.at("plan").as_object();
    CHECK(plan.at("meshes").at(0).at("words") == "Ranks: pp 2 × dp_shard 2 × tp 2");
    CHECK(plan.at("pipeline").at("schedule") == "1F1B");
    CHECK(plan.at("pipeline").at("ranks").at(1).at(0) == boost::json::array{1, "F", 0, 1., 2.});
    CHECK(plan.at("memory").at(4).at("bytes") == 5000.);
  }
  CHECK(std::string(data.at("runs").at(1).at("name").as_string()).ends_with("/b<&>"));
  CHECK(!has(page, "b<&>"));
  CHECK(data.at("differences").at(0).at(0) == "optimizer.lr");
  CHECK(has(page, "look at \\u003cits> log"));
  for (const char* outside : {"src=", "http-equiv", "@import", "url(h", "href=\"h", "<link rel=\"s",
                              "fetch(", "XMLHttp"}) {
    CAPTURE(outside);
    CHECK(!has(page, outside));
  }
  // One address, which names a language and is never asked.
  CHECK(count(page, "http://") == 1);
  CHECK(has(page, "http://www.w3.org/2000/svg"));
}

TEST_CASE("actions with numbers beyond any pipeline cost the pictures of their plan alone") {
  for (const char* row : {"9223372036854775808F0", "65535F65535", "0F18446744073709551615"}) {
    CAPTURE(row);
    TestFolder folder;
    write_run(folder.path / "a", 3);
    boost::json::value plan = boost::json::parse(base::read_file(folder.path / "a/plan.json"));
    plan.at("pipeline").at("actions").as_array().front() = row;
    write(folder.path / "a/plan.json", boost::json::serialize(plan));
    const boost::json::object data = data_of(html_page({read_run(folder.path / "a")}, "x"));
    CHECK(data.at("problems").as_array().size() == 1);
    CHECK(chart_of(data, "loss") != nullptr);
  }
}

TEST_CASE("a plan that is not as a run writes it costs its pictures alone") {
  for (
      const char* plan :
      {"{}", R"({"world_size": "two"})", R"({"world_size": 4, "device_mesh": [1]})",
       R"({"world_size": 4, "device_mesh": {"axes": ["tp"], "shape": [-1]}, "rank": {"rank": 9}})"}) {
    CAPTURE(plan);
    TestFolder folder;
    write_run(folder.path / "a", 3);
    write(folder.path / "a/plan.json", plan);
    const boost::json::object data = data_of(html_page({read_run(folder.path / "a")}, "x"));
    CHECK(std::string(data.at("problems").at(0).as_string())
              .find("plan.json is not as a run writes it") != std::string::npos);
    CHECK(!data.at("runs").at(0).as_object().contains("plan"));
    CHECK(chart_of(data, "loss") != nullptr);
  }
}

TEST_CASE(
    "what is not known of a step is no value, and what never was anything but 0 has no curve") {
  TestFolder folder;
  write_run(folder.path / "a", 40);
  // The first step knows no slowest rank.
  const std::string text =
      text_report({.colour = false, .unicode = true, .width = 80}, {read_run(folder.path / "a")});
  CHECK(text.find("Slowest rank beside the median (ms)  1.5 to 1.5, median 1.5\n") !=
        std::string::npos);
  std::string rows = base::read_file(folder.path / "a/metrics.jsonl");
  for (size_t at = 0; (at = rows.find("comm_ms\": 3.25", at)) != std::string::npos; ++at)
    rows.replace(at + 10, 4, "0.00");
  write(folder.path / "a/metrics.jsonl", rows);
  const boost::json::object data = data_of(html_page({read_run(folder.path / "a")}, "x"));
  CHECK(chart_of(data, "exposed_comm_ms") == nullptr);
  CHECK(chart_of(data, "slowest_ms") != nullptr);
}

TEST_CASE("the work of ranks is drawn with its spread over them") {
  TestFolder folder;
  write_run(folder.path / "a", 40);
  auto first = [&] {
    return points_of(data_of(html_page({read_run(folder.path / "a")}, "x")), "rank_work_ms").at(0);
  };
  CHECK(first() == boost::json::array{2, 15., 14.5, 16.5});
  // Rows that know no spread have none.
  std::string rows = base::read_file(folder.path / "a/metrics.jsonl");
  for (size_t at = 0; (at = rows.find("ms_least", at)) != std::string::npos; ++at)
    rows.replace(at, 8, "ms_other");
  for (size_t at = 0; (at = rows.find("ms_most", at)) != std::string::npos; ++at)
    rows.replace(at, 7, "ms_else");
  write(folder.path / "a/metrics.jsonl", rows);
  CHECK(first() == boost::json::array{2, 15.});
}

TEST_CASE("a point says its spread and what was not finite, if there is any") {
  Chart chart;
  const double nan = std::nan("");
  chart.lines.push_back(
      {0, "", {{1, 2, 2, 2, 0}, {2, 2, 1, 3, 0}, {3, 2, 1, 3, 4}, {4, nan, nan, nan, 1}}, {}});
  const boost::json::value nothing;
  CHECK(chart_json(chart).at("lines").at(0).at("points") ==
        boost::json::array{
            {1, 2.}, {2, 2., 1., 3.}, {3, 2., 1., 3., 4u}, {4, nothing, nothing, nothing, 1u}});
}

TEST_CASE(
    "a restart by the launcher and where it went on from are one, a changed setting is none") {
  TestFolder folder;
  write_run(folder.path / "a", 10);
  std::string log = kLog;
  log.insert(log.find("2026-11-24T09:01:00Z"),
             "2026-11-24T09:00:31Z continues with optimizer.lr = 0.1 (was 0.2)\n");
  write(folder.path / "a/run.log", log);
  const std::string page = html_page({read_run(folder.path / "a")}, "x");
  CHECK(has(page, "\"went on 1 time\""));
  CHECK(has(page, "\"kind\":\"change\""));
}

TEST_CASE("where there are too many events for a table, warnings make room, and it says so") {
  std::vector<Event> events = {{Event::Kind::start, "", 0, "x"}};
  for (int i = 0; i < 100; ++i) events.push_back({Event::Kind::warning, "", i, "warning: many"});
  events.push_back({Event::Kind::fault, "", 100, "error[E0801]: x"});
  for (int i = 0; i < 100; ++i) events.push_back({Event::Kind::warning, "", i, "warning: many"});
  RunRecord run;
  run.name = "a";
  run.events = events;
  const std::string text = text_report(report::Style{}, {run});
  CHECK(count(text, "error[E0801]: x") == 1);
  CHECK(count(text, "start") == 1);
  CHECK(count(text, "warning: many") == 38);
  CHECK(count(text, "81 more are in run.log") == 2);
  std::vector<const Event*> all;
  for (const Event& event : events) all.push_back(&event);
  for (size_t most : {0, 1, 2, 3, 40, 201, 202, 500}) {
    const std::vector<EventRow> shown = shown_events(all, most);
    CHECK(std::ranges::count_if(shown, [](const EventRow& row) { return row.left_out.empty(); }) ==
          static_cast<ptrdiff_t>(std::min(most, all.size())));
  }
}

TEST_CASE("in the terminal curves are of dots, of letters where several runs lie over each other") {
  TestFolder folder;
  write_run(folder.path / "a", 40);
  write_run(folder.path / "b", 20);
  const report::Style style{.colour = false, .unicode = true, .width = 80};
  const std::string one = text_report(style, {read_run(folder.path / "a")});
  CHECK(!has(one, "⠀"));  // blanks are blanks
  CHECK(count(one, "└") == 10);
  CHECK(has(one, "Loss  5 to "));
  CHECK(has(one, "restart 1 of 2"));
  const std::string two =
      text_report(style, {read_run(folder.path / "a"), read_run(folder.path / "b")});
  CHECK(has(two, "BBB"));
  CHECK(has(two, "AAA"));
  const report::Style plain{.colour = false, .unicode = false, .width = 60};
  const std::string ascii = text_report(plain, {read_run(folder.path / "a")});
  for (char c : ascii) CHECK(static_cast<unsigned char>(c) < 0x80);
  for (const std::string* text : {&one, &two, &ascii})
    for (size_t begin = text->find('\n') + 1; begin < text->size();) {
      const size_t end = text->find('\n', begin);
      CHECK(report::display_width(text->substr(begin, end - begin)) <= 81);
      begin = end + 1;
    }
}

TEST_CASE("JSON has what the page has") {
  TestFolder folder;
  write_run(folder.path / "a", 500);
  const boost::json::object out = report_json({read_run(folder.path / "a")});
  const boost::json::object& run = out.at("runs").as_array().at(0).as_object();
  CHECK(run.at("state") == "done");
  CHECK(run.at("completed_steps") == 500);
  CHECK(run.at("ranks") == 8);
  CHECK(run.at("tokens").is_int64());
  const boost::json::object& loss = run.at("series").at("loss").as_object();
  CHECK(loss.at("first").as_double() == doctest::Approx(5));
  CHECK(loss.at("least_at").as_double() == 500);
  CHECK(loss.at("points").as_array().size() <= 200);
  CHECK(run.at("events").as_array().size() == 6);
  CHECK(run.at("problems").as_array().empty());
}

namespace {

std::string plan_with(const std::string& more) {
  std::string plan = kPlan;
  return plan.insert(plan.rfind('}'), more);
}

struct Forms {
  std::string text, page;
  boost::json::object data;  // of the page
  boost::json::value found;
};

constexpr const char* kPredicted =
    R"(, "predicted": {"machine": "a <machine>", "ranks_per_host": 8, "seconds": 0.02,)"
    R"( "parts": {"products": 0.012, "attention": 0.002, "recompute": 0, "tp": 0.003,)"
    R"( "shards": 0.001, "pipeline bubble": 0.0015, "optimizer": 0.0005},)"
    R"( "memory_bytes": 524288, "rough": []})";

}  // namespace

TEST_CASE("a step's prediction by part stands beside what it took, in all three forms") {
  TestFolder folder;
  write_run(folder.path / "a", 5);
  const std::string measured =
      R"(, "measured": {"seconds": 0.025, "exposed_comm_seconds": 0.006, "steps": 9,)"
      R"( "memory_bytes": 1048576})";
  const report::Style style{.colour = false, .unicode = true, .width = 80};
  auto forms = [&](const std::string& more) {
    write(folder.path / "a/plan.json", plan_with(more));
    const std::vector<RunRecord> runs = {read_run(folder.path / "a")};
    const boost::json::object out = report_json(runs);
    const std::string page = html_page(runs, "x");
    return Forms{text_report(style, runs), page, data_of(page),
                 out.at("runs").as_array().at(0).as_object().at("prediction")};
  };
  {
    const auto [text, page, data, found] = forms(kPredicted + measured);
    const size_t at = text.find("Predicted beside measured");
    REQUIRE(at != std::string::npos);
    for (const char* part :
         {"products", "12 ms", "exposed tp", "exposed shards", "pipeline bubble", "1.25", "6 ms",
          "1.50", "512.0 KiB", "1.0 MiB", "2.00", "a <machine>", "other stages"}) {
      CAPTURE(part);
      CHECK(has(text.substr(at), part));
    }
    CHECK(!has(text.substr(at), "recompute"));  // takes nothing
    const boost::json::object& shown = data.at("runs").at(0).at("prediction").as_object();
    CHECK(shown.at("rows").as_array().size() == 10);
    CHECK(std::string(shown.at("about").as_string()).find("a <machine>") != std::string::npos);
    CHECK(!has(page, "a <machine>"));
    CHECK(has(page, "\"exposed shards\""));
    CHECK(data.at("problems").as_array().empty());
    const boost::json::object& step = found.as_object();
    CHECK(step.at("machine") == "a <machine>");
    CHECK(step.at("parts").as_object().size() == 6);
    CHECK(step.at("parts").at("tp").as_double() == 0.003);
    CHECK(step.at("seconds").at("predicted").as_double() == 0.02);
    CHECK(step.at("seconds").at("measured").as_double() == 0.025);
    CHECK(step.at("exposed_comm_seconds").at("predicted").as_double() == doctest::Approx(0.004));
    CHECK(step.at("exposed_comm_seconds").at("measured").as_double() == 0.006);
    CHECK(step.at("memory_bytes").at("measured").as_int64() == 1048576);
  }
  {  // a run that has not ended
    const auto [text, page, data, found] = forms(kPredicted);
    CHECK(has(text, "Predicted beside measured"));
    CHECK(data.at("runs").at(0).as_object().contains("prediction"));
    CHECK(found.at("seconds").at("measured").is_null());
    CHECK(found.at("memory_bytes").at("predicted").as_int64() == 524288);
  }
  // Without a machine, of an earlier version, and what no run writes: nothing, and no complaint.
  for (const std::string& none :
       {std::string(), measured, R"(, "predicted": {"seconds": null, "parts": null})" + measured,
        R"(, "predicted": {"seconds": 0.02, "memory_bytes": 5, "rough": []})" + measured,
        std::string(R"(, "predicted": 3, "measured": [])"),
        std::string(R"(, "predicted": {"seconds": 0.02, "parts": [1]})"),
        std::string(R"(, "predicted": {"seconds": "x", "parts": {"tp": 1}}, "measured": 1)"),
        std::string(R"(, "predicted": {"seconds": 1, "parts": {"tp": "x", "cp": -1}})")}) {
    CAPTURE(none);
    const auto [text, page, data, found] = forms(none);
    CHECK(!has(text, "Predicted"));
    CHECK(!data.at("runs").at(0).as_object().contains("prediction"));
    CHECK(data.at("problems").as_array().empty());
    CHECK(found.is_null());
  }
}

TEST_CASE("of a run that ended in an error all three forms say whom the ranks waited for") {
  TestFolder folder;
  write_run(folder.path / "a", 5);
  write(folder.path / "a/comm_traces/rank_0.json",
        R"({"rank":0,"world":2,"host":"h","process":7,"attempt":0,"why":"error[E0601]: late",)"
        R"("error":true,"taken":9000000,"groups":[{"axis":"dp","ranks":[0,1],"entered":7,)"
        R"("sent":[0,0],"received":[0,0]}],"collectives":[)"
        R"({"number":7,"op":"all_gather","group":0,"bytes":4096,"state":"failed",)"
        R"("began":1000000,"waited_from":1000000,"ended":4000000,"for":"<b>"}]})");
  write(folder.path / "a/comm_traces/rank_1.json", "{");
  const std::string words = "in all_gather #7 of 4096 bytes in group dp [0, 1] (";
  const std::vector<RunRecord> runs = {read_run(folder.path / "a")};
  const std::string text = text_report({.colour = false, .unicode = true, .width = 400}, runs);
  CHECK(has(text, "rank 1 left no record"));
  CHECK(text.find(words + "<b>)") != std::string::npos);
  const std::string page = html_page(runs, "2026-11-24T09:30:00Z");
  CHECK(page.find(words + "\\u003cb>)") != std::string::npos);
  CHECK(page.find("rank_1.json is damaged (") != std::string::npos);
  const boost::json::object out = report_json(runs);
  const boost::json::object& verdict =
      out.at("runs").as_array().at(0).as_object().at("verdict").as_object();
  CHECK(verdict.at("awaited_ranks") == boost::json::array{1});
  CHECK(verdict.at("sentences").as_array().size() == 1);
}

TEST_CASE("numbers are short, ticks are round") {
  for (const auto& [value, text] :
       {std::pair(0.0, "0"), std::pair(0.0003, "0.0003"), std::pair(9999.0, "9999"),
        std::pair(12345.0, "12.35k"), std::pair(-4.5e6, "-4500k"), std::pair(4.5e7, "45M")})
    CHECK(short_number(value) == text);
  CHECK(ticks(0, 10, false, false) == std::vector<double>{0, 2.5, 5, 7.5, 10});
  CHECK(ticks(3, 3, false, false) == std::vector<double>{3});
  CHECK(ticks(0.5, 2000, true, false) == std::vector<double>{1, 10, 100, 1000});
  for (double at : ticks(0, 5e9, false, true)) CHECK(std::fmod(at, 1024. * 1024 * 1024) == 0);
  CHECK(letter_of(0) == "A");
  CHECK(letter_of(27) == "AB");
}

TEST_CASE("labels of an axis have the digits of its step") {
  struct Row {
    double value, most, step;
    bool bytes;
    const char* text;
  };
  constexpr double kMiB = 1024 * 1024;
  for (const Row& row : {Row{200 * kMiB, 400 * kMiB, 100 * kMiB, true, "200 MiB"},
                         {1.5 * 1024 * kMiB, 2048 * kMiB, 512 * kMiB, true, "1.5 GiB"},
                         {2.7327, 2.7328, 1e-4, false, "2.7327"},
                         {2.73275, 2.7328, 2.5e-5, false, "2.732750"},
                         {7.5, 10, 2.5, false, "7.5"},
                         {10, 10, 2.5, false, "10.0"},
                         {12500, 20000, 2500, false, "12.5k"},
                         {5e-6, 1e-5, 5e-6, false, "5e-06"},
                         {1.00002e-12, 1.00003e-12, 1e-17, false, "1.00002e-12"},
                         {0, 1e6, 1e5, true, "0"}})
    CHECK(axis_text(row.value, row.most, row.step, row.bytes) == row.text);
  // 32 bits tell these two apart and nobody else should: they lie on one line.
  const auto [least, most] = shown_range(2.73267666, 2.73267674);
  CHECK(most - least == doctest::Approx(2.7327e-4).epsilon(1e-3));
  CHECK(shown_range(1, 2) == std::pair(1.0, 2.0));
  CHECK(shown_range(3, 3) == std::pair(3.0, 3.0));
}

TEST_CASE("curves that differ by rounding lie on one line, with labels that differ") {
  Series a, b;
  for (double step = 1; step <= 4; ++step) a.add(step, 2.73267666), b.add(step, 2.73267674);
  Chart chart;
  chart.key = "loss";
  for (const Series* one : {&a, &b})
    chart.lines.push_back({.run = chart.lines.size(),
                           .name = "",
                           .points = thinned(*one, 100),
                           .summary = *summary_of(*one)});
  chart.first_step = 1, chart.last_step = 4;
  const boost::json::object drawn = chart_json(chart);
  const boost::json::array& grid = drawn.at("grid").as_array();
  std::set<std::string> labels;
  for (const boost::json::value& line : grid) labels.emplace(line.at(1).as_string());
  CHECK(grid.size() >= 2);
  CHECK(labels.size() == grid.size());
  const std::string plot =
      draw_plot({false, true, 60}, {.lines = {{0, &a}, {1, &b}}, .first_step = 1, .last_step = 4});
  CHECK(has(plot, "2.7328"));
  CHECK(has(plot, "2.7325"));
}

TEST_CASE("an axis is logarithmic where a peak would hide the rest") {
  Chart chart;
  chart.may_be_log = true;
  chart.lines.emplace_back().summary = {.finite = 3, .median = 1, .least = 0.5, .most = 2};
  CHECK(!wants_log(chart));
  chart.lines[0].summary.most = 2000;
  CHECK(wants_log(chart));
  chart.lines[0].summary.least = 0;
  CHECK(!wants_log(chart));
  chart.lines[0].summary.least = 0.5;
  chart.may_be_log = false;
  CHECK(!wants_log(chart));
}
