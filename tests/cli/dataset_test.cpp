// dataset show and dataset stats, as a user runs them.
#include <doctest/doctest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "ran.h"

namespace json = boost::json;

namespace dataset_test {

const std::string kJob = "configs/chat_tuning_cpu.toml --set dataset.jsonl.cache=none ";
const std::string kText =
    "configs/ddp_cpu.toml --set dataset.kind=text --set dataset.path=README.md ";

json::object parsed(const std::string& arguments) {
  const Ran ran = run(arguments + " --json");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  return json::parse(ran.out).as_object();
}

TEST_CASE("a row: its text, and what is learnt of it") {
  const Ran ran = run("dataset show " + kJob + "--row 0");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  CHECK(ran.out.starts_with("row 0 of 200, configs/chats/chats.jsonl:1: "));
  CHECK(ran.out.find("<|im_start|>assistant\n⟦") != std::string::npos);
  CHECK(ran.out.find("<|im_end|>⟧\n") != std::string::npos);
  CHECK(ran.out.find("258*") != std::string::npos);
  const json::object row = parsed("dataset show " + kJob + "--row 0");
  CHECK(row.at("rows").to_number<int>() == 200);
  const std::string text(row.at("text").as_string());
  std::string learnt;
  size_t end = 0;
  for (const json::value& token : row.at("tokens").as_array()) {
    const json::object& one = token.as_object();
    const auto begin = one.at("begin").to_number<size_t>();
    CHECK(begin == end);  // tokens cover the text
    end = one.at("end").to_number<size_t>();
    if (one.at("target").as_bool()) learnt += text.substr(begin, end - begin);
  }
  CHECK(end == text.size());
  CHECK(learnt.ends_with("<|im_end|>"));
  CHECK(text.find("assistant\n" + learnt.substr(0, 5)) != std::string::npos);
}

TEST_CASE("a row is shown although others are wrong, and training on them is refused") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("rows_" + std::to_string(::getpid()) + ".jsonl"))
          .string();
  std::ofstream(path) << "{\"text\": 3}\n{\"text\": \"ab\"}\n";
  const std::string job = kJob + "--set dataset.path=" + path;
  CHECK(run("dataset show " + job + " --row 1").out.starts_with("row 1 of 2, " + path + ":2: "));
  CHECK(run("dataset show " + job + " --row 0").status == 7);
  CHECK(run("dataset stats " + job).status == 7);
  // The place is in the message, and where programs look for it.
  const Ran ran = run("dataset stats " + job + " --json");
  INFO(ran.out);
  const json::object error = json::parse(ran.out).as_object().at("error").as_object();
  CHECK(std::string(error.at("file").as_string()) == path);
  CHECK(error.at("line").to_number<int>() == 1);
  CHECK(error.at("column").is_null());
  CHECK(run("dataset stats " + job, "2>&1").out.find("-->") == std::string::npos);
  std::filesystem::remove(path);
}

TEST_CASE("a sample: which documents it holds") {
  const Ran ran = run("dataset show " + kJob + "--sample 0");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  CHECK(ran.out.find("a letter a document") != std::string::npos);
  CHECK(ran.out.find("document  positions  targets") != std::string::npos);
  const json::object sample = parsed("dataset show " + kJob + "--sample 0");
  CHECK(sample.at("tokens").as_array().size() == 512);
  CHECK(sample.at("documents").as_array().size() == 512);
  // Any kind of data has samples.
  CHECK(parsed("dataset show " + kText + "--sample 1").at("tokens").as_array().size() == 128);
}

TEST_CASE("what pads a sample is no document") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("pads_" + std::to_string(::getpid()) + ".jsonl"))
          .string();
  std::ofstream(path) << R"({"prompt": "abc", "completion": "de"})" << "\n"
                      << R"({"prompt": "fg", "completion": "h"})" << "\n";
  for (const char* packing : {"bfd", "none"}) {
    CAPTURE(packing);
    const std::string job = kJob + "--set dataset.path=" + path +
                            " --set dataset.jsonl.packing=" + packing + " --sample 0";
    const json::object sample = parsed("dataset show " + job);
    const json::array &targets = sample.at("targets").as_array(),
                      &documents = sample.at("documents").as_array();
    // Both end with a target here.
    size_t pads = 0;
    while (targets.at(targets.size() - 1 - pads).to_number<int64_t>() == -100) ++pads;
    CHECK(pads > 490);
    CHECK(documents.empty() == (std::string(packing) == "none"));
    const std::string count = std::to_string(pads);
    const Ran ran = run("dataset show " + job);
    INFO(ran.out);
    CHECK(ran.out.find("..\n") != std::string::npos);
    CHECK(ran.out.find(".         " + std::string(9 - count.size(), ' ') + count + "        0") !=
          std::string::npos);
    CHECK(ran.out.find("\nc ") == std::string::npos);
    CHECK((ran.out.find("\nb ") != std::string::npos) == (std::string(packing) == "bfd"));
  }
  std::filesystem::remove(path);
}

TEST_CASE("numbers") {
  const json::object all = parsed("dataset stats " + kJob);
  const json::object& stats = all.at("dataset").as_object();
  // No row is cut or left out: each has a position less than tokens.
  CHECK(stats.at("tokens").to_number<int64_t>() ==
        stats.at("positions").to_number<int64_t>() + stats.at("used").to_number<int64_t>());
  const auto samples = stats.at("samples").to_number<double>();
  CHECK(stats.at("samples_a_step").to_number<int>() == 8);
  CHECK(stats.at("steps_an_epoch").to_number<double>() == doctest::Approx(samples / 8));
  CHECK(stats.at("documents_a_step").to_number<double>() == doctest::Approx(200 * 8 / samples));
  CHECK(stats.at("rows").to_number<int>() == 200);
  CHECK(stats.at("used").to_number<int>() == 200);
  CHECK(stats.at("positions").to_number<int>() > stats.at("targets").to_number<int>());
  CHECK(stats.at("special_tokens_kept_as_text").to_number<int>() > 0);
  CHECK(stats.at("seq_len").to_number<int>() == 512);
  const Ran ran = run("dataset stats " + kJob);
  CHECK(ran.out.starts_with("[dataset] configs/chats/chats.jsonl, 200 rows, "));
  CHECK(ran.out.find("200 used") != std::string::npos);
  char documents[48];
  std::snprintf(documents, sizeof documents, " steps of 8 samples, %.1f documents a step\n",
                200 * 8 / samples);
  CHECK(ran.out.find("\n  an epoch is ") != std::string::npos);
  CHECK(ran.out.find(documents) != std::string::npos);
  // Of another batch, and of data without rows.
  const json::object whole =
      parsed("dataset stats " + kJob + "--set step_scheduler.global_batch_size=1000");
  CHECK(whole.at("dataset").as_object().at("steps_an_epoch").to_number<double>() ==
        doctest::Approx(samples / 1000));
  CHECK(run("dataset stats " + kText).out.find(" steps of 32 samples\n") != std::string::npos);
  CHECK(parsed("dataset stats " + kText).at("dataset").as_object().at("samples").to_number<int>() >
        3);
}

TEST_CASE("what is wrong says what to change") {
  struct Row {
    std::string arguments;
    int status;
    const char* says;
  };
  for (const Row& row : std::vector<Row>{
           {"show " + kJob, 2, "which row or sample is to be shown?"},
           {"show " + kJob + "--row 1 --sample 1", 2, "--row and --sample are two questions"},
           {"show " + kJob + "--row 200", 2, "has rows 0 to 199"},
           {"show " + kJob + "--sample 100000", 2, "the data set has samples 0 to "},
           {"show " + kText + "--row 0", 2, "has no rows to show, only samples"},
           {"stats " + kJob + "--set dataset.path=nowhere.jsonl", 7, "E0701"},
           {"stats " + kJob + "--set dataset.jsonl.chat_template=README.md.no", 7, "E0710"},
           {"stats " + kJob + "--set dataset.jsonl.packing=best", 2, "E0205"},
           {"stats configs/ddp_cpu.toml --set dataset.kind=jsonl", 2,
            "set dataset.plugin = \"jsonl\" in its place"},
           {"stats configs/hsdp_tp.toml", 2, "the file names no data"},
       }) {
    CAPTURE(row.arguments);
    const Ran ran = run("dataset " + row.arguments, "2>&1");
    INFO(ran.out);
    CHECK(ran.status == row.status);
    CHECK(ran.out.find(row.says) != std::string::npos);
  }
}

}  // namespace dataset_test
