// The flags of plan --search and --machine, and its answer on narrow terminals.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "ran.h"

namespace search_flags_test {

namespace {

const std::string kJob = "plan configs/pipeline_64.toml --world-size 64 ";

}  // namespace

TEST_CASE("flags of a search that cannot be kept are refused, with what can be done") {
  check_said(kJob, {{"--machine h100 --search --rank 3", 2,
                     "--rank shows one layout, --search many", "leave --rank out"},
                    {"--machine h100 --search --groups tp", 2,
                     "--groups shows one layout, --search many", "leave --groups out"},
                    {"--machine h100 --search --fix tp_size=2 --fix tp_size=4", 2,
                     "--fix tp_size stands twice", "--fix tp_size=4"},
                    {"--machine ''", 2, "--machine is empty", "--machine h100x8"},
                    {"--machine '' --search", 2, "--machine is empty", "--machine h100x8"},
                    {"--machine h100x9999", 2, "1 to 1024 ranks", "--machine h100x8"}});
  // Several keys are what --fix is for.
  CHECK(run(kJob + "--machine h100 --search --fix tp_size=2 --fix pp_size=8 --top 1").status == 0);
}

TEST_CASE("a batch that --global-batch gave is mended by --global-batch, the file's by its key") {
  struct Row {
    const char *flag, *help, *never;
  };
  for (const Row& row :
       {Row{"--global-batch 64 ", "--global-batch 448", "set step_scheduler.global_batch_size"},
        Row{"", "set step_scheduler.global_batch_size = 448", "--global-batch"}}) {
    CAPTURE(row.flag);
    const Ran ran =
        run(kJob + "--machine h100x8 --search --fix local_batch_size=7 " + row.flag + "--json");
    INFO(ran.out);
    CHECK(ran.status == 3);
    CHECK(ran.says(row.help));
    CHECK_FALSE(ran.says(row.never));
  }
}

TEST_CASE("--fix local_batch_size keeps the samples of a micro-batch, with stages and without") {
  struct Row {
    const char *flags, *setting, *size;
  };
  for (const Row& row :
       {Row{"--fix pp_size=1", "step_scheduler.local_batch_size=8", "distributed.pp_size=1"},
        Row{"--fix pp_size=2", "distributed.pipeline.pp_microbatch_size=8",
            "distributed.pp_size=2"}}) {
    CAPTURE(row.flags);
    const Ran ran = run(kJob + "--machine h100x8 --search --top 3 --json " +
                        "--fix local_batch_size=8 " + row.flags);
    REQUIRE(ran.status == 0);
    const json::value found = json::parse(ran.out);
    REQUIRE(!found.at("layouts").as_array().empty());
    for (const json::value& layout : found.at("layouts").as_array()) {
      const std::string use = std::string(layout.at("use").as_string()) + " ";
      CAPTURE(use);
      CHECK(use.find(std::string(" ") + row.setting + " ") != std::string::npos);
      CHECK(use.find(std::string(" ") + row.size + " ") != std::string::npos);
    }
  }
  // What the help calls it, wherever its lines break.
  std::istringstream words(run("plan --help").out);
  std::string text;
  for (std::string word; words >> word;) text += word + " ";
  CHECK(text.find("local_batch_size (samples of a micro-batch)") != std::string::npos);
}

TEST_CASE("where no layout keeps to --max-memory, that is the key, and no machine the help") {
  const Ran ran = run(kJob + "--machine h100x8 --search --max-memory 8 --json");
  INFO(ran.out);
  CHECK(ran.status == 3);
  const json::object error = json::parse(ran.out).at("error").as_object();
  CHECK(error.at("code").as_string() == "E0319");
  CHECK(error.at("key").as_string() == "--max-memory");
  const std::string first(error.at("help").at(0).as_string());
  CHECK(first.find("--max-memory") != std::string::npos);
  CHECK_FALSE(ran.says("a device with"));
}

// A search: apps/performance/forecast/tests/show_search_test.cpp.
TEST_CASE("a prediction fits narrow terminals: no line is longer, but for a setting that is") {
  for (const int width : {40, 60, 80, 100}) {
    CAPTURE(width);
    const Ran ran =
        run(kJob + "--machine b200x8", "2>/dev/null", "COLUMNS=" + std::to_string(width));
    REQUIRE(ran.status == 0);
    const size_t begin = ran.out.find("Predicted");
    REQUIRE(begin != std::string::npos);
    std::istringstream lines(ran.out.substr(begin));
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      const bool setting =
          line.find("--set ") != std::string::npos && line.find("--set ") == line.rfind("--set ");
      CHECK((setting || line.size() <= static_cast<size_t>(width)));
    }
  }
}

}  // namespace search_flags_test
