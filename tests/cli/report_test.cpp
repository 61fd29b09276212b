// report on a real run: what the page says, what is refused, and what a run that goes on tells.
#include "ran.h"
#include "tests/contents.h"

namespace report_test {

namespace {

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

  const Ran page = run("report " + folder.quoted("first"), "2>&1");
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

  const json::object out =
      json::parse(run("report " + folder.quoted("first") + " --json").out).as_object();
  const json::object& first = out.at("runs").as_array().at(0).as_object();
  CHECK(first.at("state") == "done");
  CHECK(first.at("completed_steps") == 5);
  CHECK(first.at("times").as_array().size() == 2);
  bool with_time = true;
  for (const json::value& event : first.at("events").as_array())
    with_time = with_time && event.as_object().at("time").is_string();
  CHECK(with_time);
  const Ran text = run("report " + folder.quoted("first") + " --text");
  CHECK(text.status == 0);
  CHECK(has(text.out, "first: done, 5 of 5 steps; fsdp2 on 2 ranks, cpu; took "));
  CHECK(has(run("report " + folder.quoted("first") + " --output -").out, "<!doctype html>"));
}

TEST_CASE("what is no run, and a page that cannot be written, are told") {
  const Folder folder;
  const std::string run_folder = (folder.path / "first").string();
  folder.put("first/run.log", "notice: x\n");
  check_said("report", {{" " + folder.quoted("frist"), 2, "did you mean "},
                        {"", 2, "wants RUN"},
                        {" configs", 2, "neither metrics.jsonl nor run.log"},
                        {" " + run_folder + " --text --json", 2, "only one can be"},
                        {" " + run_folder + " --text --output x.html", 2, "makes none: it prints"},
                        {" " + run_folder + " --output " + run_folder + "/no/page.html", 7,
                         "--output FILE names another place"},
                        {" " + run_folder + " --output /dev/full/x", 7, "cannot "},
                        {" " + run_folder, 0, "metrics.jsonl is not there: there are no curves"}});
}

}  // namespace report_test
