// report on a real run: what the page says, what is refused, and what a run that goes on tells.
#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "ran.h"
#include "tests/contents.h"

namespace report_test {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("meshwright_report_" + std::to_string(::getpid()));
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path); }
  std::string run() const { return "'" + (path / "first").string() + "'"; }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a run that went on with another learning rate is reported with what changed and when") {
  const Folder folder;
  const std::string train = "train configs/first_fsdp2_cpu.toml --nproc 2 --trace --set run.dir='" +
                            folder.path.string() + "' --set step_scheduler.max_steps=";
  REQUIRE(run(train + "3").status == 0);
  const Ran again = run(train + "5 --set optimizer.lr=0.002", "2>&1");
  INFO(again.out);
  REQUIRE(again.status == 0);
  const char* const changes[] = {"continues with ", "step_scheduler.max_steps = 5 (was 3)",
                                 "optimizer.lr = 0.002 (was "};
  for (const char* change : changes) CHECK(has(again.out, change));

  const Ran page = run("report " + folder.run(), "2>&1");
  INFO(page.out);
  REQUIRE(page.status == 0);
  CHECK(has(page.out, "report.html"));
  const std::string html = contents(folder.path / "first/report.html");
  for (const char* part : {R"("key":"loss")", R"("key":"step_ms")", "Ranks: dp_shard 2",
                           "From the traces of 2 ranks: computation ", "continues after step 3",
                           R"("checkpoints":[{)", R"("problems":[])", "</html>"}) {
    CAPTURE(part);
    CHECK(has(html, part));
  }
  for (const char* change : changes) CHECK(has(html, change));

  const json::object out = json::parse(run("report " + folder.run() + " --json").out).as_object();
  const json::object& first = out.at("runs").as_array().at(0).as_object();
  CHECK(first.at("state") == "done");
  CHECK(first.at("completed_steps") == 5);
  CHECK(first.at("times").as_array().size() == 2);
  bool with_time = true;
  for (const json::value& event : first.at("events").as_array())
    with_time = with_time && event.as_object().at("time").is_string();
  CHECK(with_time);
  const Ran text = run("report " + folder.run() + " --text");
  CHECK(text.status == 0);
  CHECK(has(text.out, "first: done, 5 of 5 steps; fsdp2 on 2 ranks, cpu; took "));
  CHECK(has(run("report " + folder.run() + " --output -").out, "<!doctype html>"));
}

TEST_CASE("what is no run, and a page that cannot be written, are told") {
  const Folder folder;
  fs::create_directories(folder.path / "first");
  struct Row {
    std::string arguments;
    int status;
    const char* told;
  };
  const std::string run_folder = (folder.path / "first").string();
  std::ofstream(folder.path / "first/run.log") << "notice: x\n";
  for (const Row& row :
       {Row{"report '" + (folder.path / "frist").string() + "'", 2, "did you mean "},
        Row{"report", 2, "wants RUN"},
        Row{"report configs", 2, "neither metrics.jsonl nor run.log"},
        Row{"report " + run_folder + " --text --json", 2, "only one can be"},
        Row{"report " + run_folder + " --text --output x.html", 2, "makes none: it prints"},
        Row{"report " + run_folder + " --output " + run_folder + "/no/page.html", 7,
            "--output FILE names another place"},
        Row{"report " + run_folder + " --output /dev/full/x", 7, "cannot "},
        Row{"report " + run_folder, 0, "metrics.jsonl is not there: there are no curves"}}) {
    CAPTURE(row.arguments);
    const Ran ran = run(row.arguments, "2>&1");
    INFO(ran.out);
    CHECK(ran.status == row.status);
    CHECK(has(ran.out, row.told));
  }
}

}  // namespace report_test
