// dataset show and dataset stats, as a user runs them.
#include "ran.h"

namespace dataset_test {

const std::string kJob = "configs/chat_tuning_cpu.toml --set dataset.jsonl.cache=none ";
const std::string kText =
    "configs/ddp_cpu.toml --set dataset.kind=text --set dataset.path=README.md ";

TEST_CASE("a row: its text, and what is learnt of it") {
  const Ran ran = run("dataset show " + kJob + "--row 0");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  CHECK(ran.out.starts_with("row 0 of 200, configs/chats/chats.jsonl:1: "));
  CHECK(ran.says("<|im_start|>assistant\n⟦"));
  CHECK(ran.says("<|im_end|>⟧\n"));
  CHECK(ran.says("258*"));
  const json::object row = answer("dataset show " + kJob + "--row 0");
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
  const Folder folder;
  const std::string path = folder.put("rows.jsonl", "{\"text\": 3}\n{\"text\": \"ab\"}\n");
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
  CHECK_FALSE(run("dataset stats " + job, "2>&1").says("-->"));
}

TEST_CASE("a sample: which documents it holds") {
  const Ran ran = run("dataset show " + kJob + "--sample 0");
  INFO(ran.out);
  REQUIRE(ran.status == 0);
  CHECK(ran.says("a letter a document"));
  CHECK(ran.says("document  positions  targets"));
  const json::object sample = answer("dataset show " + kJob + "--sample 0");
  CHECK(sample.at("tokens").as_array().size() == 512);
  CHECK(sample.at("documents").as_array().size() == 512);
  // Any kind of data has samples.
  CHECK(answer("dataset show " + kText + "--sample 1").at("tokens").as_array().size() == 128);
}

TEST_CASE("what pads a sample is no document") {
  const Folder folder;
  const std::string path = folder.put("pads.jsonl", R"({"prompt": "abc", "completion": "de"}
{"prompt": "fg", "completion": "h"}
)");
  for (const char* packing : {"bfd", "none"}) {
    CAPTURE(packing);
    const std::string job = kJob + "--set dataset.path=" + path +
                            " --set dataset.jsonl.packing=" + packing + " --sample 0";
    const json::object sample = answer("dataset show " + job);
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
    CHECK(ran.says("..\n"));
    CHECK(ran.says(".         " + std::string(9 - count.size(), ' ') + count + "        0"));
    CHECK_FALSE(ran.says("\nc "));
    CHECK((ran.says("\nb ")) == (std::string(packing) == "bfd"));
  }
}

TEST_CASE("numbers") {
  const json::object all = answer("dataset stats " + kJob);
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
  CHECK(ran.says("200 used"));
  char documents[48];
  std::snprintf(documents, sizeof documents, " steps of 8 samples, %.1f documents a step\n",
                200 * 8 / samples);
  CHECK(ran.says("\n  an epoch is "));
  CHECK(ran.says(documents));
  // Of another batch, and of data without rows.
  const json::object whole =
      answer("dataset stats " + kJob + "--set step_scheduler.global_batch_size=1000");
  CHECK(whole.at("dataset").as_object().at("steps_an_epoch").to_number<double>() ==
        doctest::Approx(samples / 1000));
  CHECK(run("dataset stats " + kText).says(" steps of 32 samples\n"));
  CHECK(answer("dataset stats " + kText).at("dataset").as_object().at("samples").to_number<int>() >
        3);
}

TEST_CASE("what is wrong says what to change") {
  check_said("dataset ",
             {{"show " + kJob, 2, "which row or sample is to be shown?"},
              {"show " + kJob + "--row 1 --sample 1", 2, "--row and --sample are two questions"},
              {"show " + kJob + "--row 200", 2, "has rows 0 to 199"},
              {"show " + kJob + "--sample 100000", 2, "the data set has samples 0 to "},
              {"show " + kText + "--row 0", 2, "has no rows to show, only samples"},
              {"stats " + kJob + "--set dataset.path=nowhere.jsonl", 7, "E0701"},
              {"stats " + kJob + "--set dataset.jsonl.chat_template=README.md.no", 7, "E0710"},
              {"stats " + kJob + "--set dataset.jsonl.packing=best", 2, "E0205"},
              {"stats configs/ddp_cpu.toml --set dataset.kind=jsonl", 2,
               "set dataset.plugin = \"jsonl\" in its place"},
              {"stats configs/hsdp_tp.toml", 2, "the file names no data"}});
}

}  // namespace dataset_test
