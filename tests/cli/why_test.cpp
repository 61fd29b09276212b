// plan --search --why and --free, held to plan with the same settings.
#include <cmath>
#include <cstdint>
#include <utility>

#include "ran.h"

namespace why_test {

namespace {

const std::string kJob = "configs/hsdp_tp.toml --world-size 64 --machine h100x8 ";

json::value why(const std::string& job, const std::string& layout) {
  return answer("plan " + job + " --search --why '" + layout + "'").at("why");
}

// `plan` with the layout's line says the same seconds and bytes, by part.
void check_planned(const std::string& job, const json::value& layout) {
  const std::string use(layout.at("use").as_string());
  CAPTURE(use);
  const json::object planned = answer("plan " + job + use);
  const json::value &here = layout.at("time"), &there = planned.at("time");
  for (const auto& part : there.at("parts").as_object()) {
    CAPTURE(std::string(part.key()));
    CHECK(number(here.at("parts").at(part.key())) ==
          doctest::Approx(number(part.value())).epsilon(1e-9));
  }
  CHECK(json::serialize(here.at("memory").at("parts")) ==
        json::serialize(there.at("memory").at("parts")));
  double bytes = 0;
  for (const auto& part : here.at("memory").at("parts").as_object()) bytes += number(part.value());
  CHECK(bytes == number(here.at("memory").at("bytes")));
}

}  // namespace

TEST_CASE("--why gives seconds and bytes of a layout as plan does with its line, and its place") {
  const json::value asked = why(kJob, "dp32 tp2");
  REQUIRE(asked.at("layout").is_object());
  const json::value& layout = asked.at("layout");
  const std::pair<const char*, double> sizes[] = {
      {"tp", 2}, {"dp", 32}, {"cp", 1}, {"pp", 1}, {"ep", 1}};
  for (const auto& [name, size] : sizes) {
    CAPTURE(name);
    CHECK(number(layout.at(name)) == size);
  }
  CHECK(asked.at("refused").is_null());
  check_planned(kJob, layout);
  const Ran text = run("plan " + kJob + "--search --why 'dp32 tp2'", "2>/dev/null", "COLUMNS=120");
  for (const char* part : {"\nWhy dp32 tp2\n", "\nPredicted\n", "\nproducts ", "\nweights ",
                           "\nuse: --set distributed.strategy="}) {
    CAPTURE(part);
    CHECK(text.says(part));
  }
}

TEST_CASE("every row of a search is the answer to its own words") {
  const std::string job = "configs/first_fsdp2_cpu.toml --world-size 8 --machine cpu --top 24";
  const json::object found = answer("plan " + job + " --search");
  const json::array& rows = found.at("layouts").as_array();
  REQUIRE(rows.size() > 12);
  int64_t behind_options = 0;
  for (size_t i = 0; i < rows.size(); i += 3) {
    const json::value& row = rows[i];
    const std::string words = std::string(row.at("layout").as_string()) + " " +
                              std::to_string(row.at("micro_batch").as_int64()) + "x" +
                              std::to_string(row.at("micro_batches").as_int64()) + " " +
                              std::string(row.at("recompute").as_string());
    CAPTURE(words);
    const json::value asked = why(job, words);
    CHECK(asked.at("rank") == i + 1);
    CHECK(asked.at("layout").at("use") == row.at("use"));
    CHECK(number(asked.at("behind")) ==
          doctest::Approx(
              number(row.at("time").at("seconds")) / number(rows[0].at("time").at("seconds")) - 1));
    for (size_t before = 0; before < i; ++before)
      behind_options += row.at("options").as_array().empty() &&
                        !rows[before].at("options").as_array().empty() &&
                        row.at("strategy") == rows[before].at("strategy");
  }
  MESSAGE("rows behind one of their strategy with options: ", behind_options);
}

TEST_CASE("--why takes micro-batches, recomputation and schedules as the table has them") {
  const json::object found = answer("plan " + kJob + "--search --top 3");
  for (const json::value& row : found.at("layouts").as_array()) {
    auto size = [&](const char* name) {
      return std::to_string(std::llround(number(row.at(name))));
    };
    std::string words = std::string(row.at("recompute").as_string()) + " tp" + size("tp") + " " +
                        size("micro_batch") + "x" + size("micro_batches") + " cp" + size("cp") +
                        " pp" + size("pp") + " " + std::string(row.at("strategy").as_string());
    if (row.at("schedule").is_string()) words += " " + std::string(row.at("schedule").as_string());
    CAPTURE(words);
    const json::value asked = why(kJob + "--top 3", words);
    REQUIRE(asked.at("layout").is_object());
    CHECK(number(asked.at("rank")) >= 1);
    for (const char* name : {"recompute", "micro_batch", "micro_batches", "schedule", "tp", "pp"}) {
      CAPTURE(name);
      CHECK(asked.at("layout").at(name) == row.at(name));
    }
  }
  struct Row {
    const char *words, *schedule;
    bool several;
  };
  for (const Row& row : {Row{"pp2 1F1B full", "1F1B", false},
                         Row{"full Interleaved1F1B pp2", "Interleaved1F1B", true}}) {
    CAPTURE(row.words);
    const json::value asked = why(kJob, row.words);
    REQUIRE(asked.at("refused").is_null());
    const json::value& layout = asked.at("layout");
    CHECK(layout.at("schedule").as_string() == row.schedule);
    CHECK((number(layout.at("stages_per_rank")) > 1) == row.several);
    CHECK(layout.at("recompute").as_string() == "full");
    check_planned(kJob, layout);
  }
  // All samples of a rank one by one; another number of micro-batches is none of the batch's.
  const json::value best = why(kJob, "tp2").at("layout");
  const int64_t samples =
      std::llround(number(best.at("micro_batch")) * number(best.at("micro_batches")));
  const json::value ones = why(kJob, "tp2 1x" + std::to_string(samples));
  REQUIRE(ones.at("refused").is_null());
  CHECK(number(ones.at("layout").at("micro_batch")) == 1);
  const json::value more = why(kJob, "tp2 full 1x" + std::to_string(samples + 1));
  REQUIRE(more.at("refused").is_object());
  CHECK(more.at("refused").at("help").at(0).as_string() ==
        "--why 'tp2 1x" + std::to_string(samples) + " full'");
}

TEST_CASE("a layout that needs too much says how much, by part, and what would fit") {
  // 70 billion parameters of 16 bytes on each device.
  const std::string large = "configs/pipeline_64.toml --world-size 64 --machine h100x8 ";
  const json::value copies = why(large, "ddp");
  REQUIRE(copies.at("refused").is_object());
  CHECK(copies.at("refused").at("code").as_string() == "E0319");
  CHECK(copies.at("rank").is_null());
  CHECK(number(copies.at("layout").at("time").at("memory").at("bytes")) > 70e9 * 16);
  CHECK(!copies.at("layout").at("time").at("memory").at("fits").as_bool());
  CHECK(copies.at("refused").at("message").as_string().find("weights ") != std::string::npos);
  check_planned(large, copies.at("layout"));

  // The first limit that shards over all ranks do not keep to; what is said to fit does.
  for (double gib = 24;; gib *= 0.8) {
    REQUIRE(gib > 1);
    const std::string job = kJob + "--max-memory " + std::to_string(gib) + " ";
    CAPTURE(gib);
    const json::value asked = why(job, "fsdp2");
    if (asked.at("refused").is_null()) continue;
    REQUIRE(asked.at("refused").at("code").as_string() == "E0319");
    CHECK(number(asked.at("layout").at("time").at("memory").at("bytes")) > gib * std::exp2(30));
    const json::array& help = asked.at("refused").at("help").as_array();
    REQUIRE(help.size() == 1);
    std::string size(help[0].as_string());
    REQUIRE(size.starts_with("fits with "));
    size.erase(0, std::string("fits with ").size());
    size.erase(size.find(' '), 1);  // "tp 2" as a word
    CAPTURE(size);
    const json::value fits = why(job, "fsdp2 " + size);
    CHECK(fits.at("refused").is_null());
    break;
  }
}

TEST_CASE("where nothing fits --why is answered too, and what --fix rules out is refused") {
  check_said(
      "plan ",
      {{"configs/pipeline_64.toml --world-size 8 --machine h100x8 --search --why tp4", 3,
        "error[E0319]", "--why tp4: at its smallest it takes ", ": weights "},
       {kJob + "--search --fix tp_size=2 --why tp4", 2, "--fix tp_size=2 leaves tp2 alone"}});
  CHECK(run("plan " + kJob + "--search --fix tp_size=4 --why tp4", "2>/dev/null").status == 0);
}

TEST_CASE("a layout that the mesh refuses has plan's own message") {
  const json::value error =
      answer("plan " + kJob +
                 "--set distributed.tp_size=3 --set distributed.dp_replicate_size=1 --set "
                 "distributed.sequence_parallel=false",
             3)
          .at("error");
  const json::value asked = why(kJob, "tp3");
  CHECK(asked.at("layout").is_null());
  REQUIRE(asked.at("refused").is_object());
  CHECK(asked.at("refused").at("code") == error.at("code"));
  CHECK(asked.at("refused").at("message") == error.at("message"));
  // 2 * 4 are not 64.
  const json::value few = why(kJob, "tp2 dp4");
  REQUIRE(few.at("refused").is_object());
  CHECK(few.at("refused").at("message").as_string().find("the world has 64 ranks") !=
        std::string::npos);
}

TEST_CASE("what a strategy lacks is no reason against a layout that another one plans") {
  struct Row {
    const char *words, *says;
  };
  for (const Row& row : {Row{"pp16 v3", "the layers do not divide into the stages of pp"},
                         Row{"pp2 v3 DualPipeV", "the layers do not divide into the stages of pp"},
                         Row{"pp2 v100", "more than 10 stages a rank"},
                         Row{"cp16", "samples are too short for cp"}}) {
    CAPTURE(row.words);
    const json::value asked = why(kJob, row.words);
    REQUIRE(asked.at("refused").is_object());
    CHECK(asked.at("refused").at("code").as_string() == "E0316");
    CHECK(asked.at("refused").at("message").as_string().find(row.says) != std::string::npos);
  }
}

TEST_CASE("words that no layout has are refused with those that there are") {
  check_said(
      "plan " + kJob,
      {{"--search --why 'tp8 fast'", 2, "E0101", "fast", "fsdp2"},
       {"--search --why ''", 2, "E0101", "names no layout", "tpN"},
       {"--search --why 'tp2 tp4'", 2, "E0101", "tp4", "tpN"},
       {"--search --why v2", 2, "E0101", "ppN", "ZBVZeroBubble"},
       {"--search --why 'full none'", 2, "E0101", "none stands beside", "NxM"},
       {"--search --why '1x2 2x1'", 2, "E0101", "2x1 stands beside", "NxM"},
       {"--search --why 'pp2 v2 1F1B'", 2, "E0101", "one stage", "1F1B"},
       {"--search --why 'pp2 v1 Interleaved1F1B'", 2, "E0101", "several stages", "Interleaved1F1B"},
       {"--search --why 'pp2 GPipe'", 2, "E0101", "no layout has the word GPipe", "1F1B"},
       {"--search --fix local_batch_size=2 --why 1x8", 2, "E0101", "micro 2xM alone",
        "name micro 2xM"},
       {"--why tp8", 2, "E0101", "--why belongs to --search", "--search"},
       {"--search --free distributed.tp_size", 2, "E0101", "distributed.tp_size", "--fix"},
       {"--search --free distributed.megatron_fsdp.zero_dp_strateg", 2, "E0101", "zero_dp_strateg",
        "did you mean --free distributed.megatron_fsdp.zero_dp_strategy?"}});
}

TEST_CASE("--free tries the values of an option that the file sets") {
  const std::string job =
      "configs/megatron_fsdp_cpu.toml --world-size 4 --machine cpu --search --top 64";
  auto uses = [&](const std::string& more) {
    std::string out;
    const json::object found = answer("plan " + job + more);
    for (const json::value& layout : found.at("layouts").as_array())
      out += std::string(layout.at("use").as_string()) + "\n";
    return out;
  };
  const std::string key = "distributed.megatron_fsdp.zero_dp_strategy";
  CHECK(uses("").find(key + "=1") == std::string::npos);
  CHECK(uses(" --free " + key).find(key + "=1") != std::string::npos);
}

}  // namespace why_test
