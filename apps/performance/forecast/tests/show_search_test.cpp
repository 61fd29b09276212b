// How the search's answer is shown: on wide and narrow terminals, and as JSON.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/performance/forecast/search.h"

namespace show_search_test {

using namespace meshwright;
using forecast::Found;

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

const char* const kSets =
    "--set distributed.strategy=fsdp2 --set distributed.tp_size=8 "
    "--set distributed.pipeline.pp_schedule=ZBVZeroBubble "
    "--set distributed.pipeline.first_stage_less_layers=1";

void add(Found& found, steptime::Layout layout, double seconds, std::vector<std::string> rough) {
  layout.predicted.seconds = seconds;
  layout.job.ranks = 64;
  forecast::Forecast f;
  f.job = layout.job;
  f.time.seconds = seconds;
  f.tokens_a_second = 12345 / seconds;
  f.mfu = 0.41;
  f.memory = 40 * kGiB;
  f.usable = 80 * kGiB;
  f.bound = "element-wise kernels";
  f.bound_share = 0.33;
  f.rough = std::move(rough);
  found.result.best.push_back(std::move(layout));
  found.forecasts.push_back(std::move(f));
  found.sets.emplace_back(kSets);
}

// Three layouts on 64 ranks, which may take 50 of the machine's 80 GiB.
Found found_here() {
  Found found;
  found.memory = 50 * kGiB;
  steptime::Layout stages;
  stages.strategy = "fsdp2";
  stages.job.tp = 8;
  stages.job.pp = 4;
  stages.job.stages = 2;
  stages.job.shard = 2;
  stages.job.schedule = PipelineSchedule::zbv_zero_bubble;
  stages.job.micro_batches = 128;
  stages.job.recompute = steptime::Recompute::selective;
  add(found, stages, 1, {"guessed figures of the machine: peak.bf16, network.nic, host.fixed"});
  steptime::Layout data;
  data.strategy = "megatron_fsdp";
  data.options = {"distributed.megatron_fsdp.outer_dp_sharding_strategy=1"};
  data.job.shard = 8;
  add(found, data, 1.01,
      {"guessed figures of the machine: peak.bf16, network.nic, host.fixed",
       "cp over 4: within 12%"});
  steptime::Layout plain;
  plain.strategy = "ddp";
  add(found, plain, 1.2, {});
  found.result.enumerated = 57214;
  found.result.fitting = 3;
  found.result.predicted = 3;
  found.result.rejected["more memory than a rank has"] = 57211;
  return found;
}

// With so many layouts, the last one again and again where there are fewer.
void resize(Found& found, size_t count) {
  while (found.result.best.size() < count) add(found, found.result.best.back(), 1.3, {});
  found.result.best.resize(count);
  found.forecasts.resize(count);
  found.sets.resize(count);
}

std::string drawn(int width) { return forecast::draw({false, true, width}, found_here()); }

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

std::vector<std::string> words_in(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a wide terminal has a layout a line, a narrow one its sizes under its figures") {
  const std::vector<std::string> wide = lines_in(drawn(140));
  CHECK(words_in(wide[0]) ==
        words_in("# layout micro recompute tokens/s MFU memory room bound by"));
  CHECK(words_in(wide[1]) ==
        words_in("1 fsdp2 tp8 pp4 v2 ZBVZeroBubble dp2 1x128 selective ~12,345 "
                 "41% 40.0 GiB 20% element-wise kernels 33%"));
  CHECK(wide[4].empty());

  const std::vector<std::string> usual = lines_in(drawn(80));
  CHECK(words_in(usual[0]) == words_in("# micro recompute tokens/s MFU memory room bound by"));
  CHECK(words_in(usual[1]) ==
        words_in("1 1x128 selective ~12,345 41% 40.0 GiB 20% element-wise kernels 33%"));
  CHECK(usual[2] == "   fsdp2 tp8 pp4 v2 ZBVZeroBubble dp2");
  CHECK(usual[4] == "   megatron_fsdp dp64 replicas8 outer_dp_sharding_strategy=1");
  CHECK(usual[7].empty());

  const std::vector<std::string> narrow = lines_in(drawn(60));
  CHECK(words_in(narrow[0]) == words_in("# micro recompute tokens/s MFU memory room"));
  CHECK(narrow[2] == "   fsdp2 tp8 pp4 v2 ZBVZeroBubble dp2, bound by element-wise");
  CHECK(narrow[3] == "   kernels 33%");

  const std::vector<std::string> narrowest = lines_in(drawn(40));
  CHECK(words_in(narrowest[0]) == words_in("# micro tokens/s MFU memory room"));
  CHECK(narrowest[2] == "   fsdp2 tp8 pp4 v2 ZBVZeroBubble dp2,");
  CHECK(narrowest[3] == "   recompute selective, bound by");
  CHECK(narrowest[4] == "   element-wise kernels 33%");
}

TEST_CASE("no line is too long, but for a setting that is, and no word is broken") {
  std::vector<std::string> words = words_in(drawn(400));
  // These stand elsewhere in a narrow answer, or beside a comma.
  std::erase_if(words, [](const std::string& word) {
    return word == "layout" || word == "recompute" || word == "micro" || word == "bound" ||
           word == "by" || word == "dp2" || word == "dp64" || word == "1x128" ||
           word == "selective" || word == "none" || word.starts_with("outer_dp");
  });
  for (const int width : {40, 50, 60, 70, 80, 90, 100, 120}) {
    CAPTURE(width);
    const std::string text = drawn(width);
    for (const std::string& line : lines_in(text)) {
      CAPTURE(line);
      const bool one_setting = words_in(line).size() <= 4 && has(line, "--set ");
      CHECK((one_setting || line.size() <= static_cast<size_t>(width)));
    }
    const std::vector<std::string> there = words_in(text);
    for (const std::string& word : words) {
      CAPTURE(word);
      CHECK(std::ranges::find(there, word) != there.end());
    }
    CHECK(has(text, "outer_dp_sharding_strategy=1"));
  }
}

TEST_CASE("settings that take several lines are those of one line to a shell") {
  for (const int width : {40, 80, 300}) {
    CAPTURE(width);
    std::string text = drawn(width);
    const std::string breaks = " \\\n   ";
    int broken = 0;
    for (size_t at; (at = text.find(breaks)) != std::string::npos; ++broken)
      text.replace(at, breaks.size(), " ");
    CHECK((broken > 0) == (width < 300));
    for (const char* number : {"1: ", "2: ", "3: "})
      CHECK(has(text, "\n" + (number + std::string(kSets)) + "\n"));
  }
}

TEST_CASE("each rough figure is marked, and a reason says whose it is") {
  const std::string text = drawn(200);
  const std::vector<std::string> lines = lines_in(text);
  CHECK(has(lines[1], "~12,345"));
  CHECK(has(lines[2], "~12,223"));  // 12,345 / 1.01
  CHECK(has(lines[3], " 10,288"));  // 12,345 / 1.2, not rough
  CHECK(has(text, "\n~ rough in 1, 2: guessed figures of the machine: peak.bf16, network.nic"));
  CHECK(has(text, "\n~ rough in 2: cp over 4: within 12%\n"));
  // What all have needs no numbers.
  Found found = found_here();
  found.forecasts[2].rough = found.forecasts[0].rough;
  CHECK(has(forecast::draw({false, true, 200}, found), "\n~ rough: guessed figures"));
  for (forecast::Forecast& f : found.forecasts) f.rough.clear();
  CHECK(!has(forecast::draw({false, true, 200}, found), "~"));
}

TEST_CASE("why a slower layout is first is told, and where the first leaves next to nothing") {
  const std::string text = drawn(300);
  CHECK(!has(text, "faster than 1"));
  CHECK(!has(text, "very tight"));
  Found found = found_here();
  auto shown = [&] { return forecast::draw({false, true, 300}, found); };
  found.result.best[1].predicted.seconds = 0.98;
  found.result.best[1].use = 0.9;
  CHECK(
      has(shown(),
          "\n2 is 2.0% faster than 1, but tight: above 85% of what a rank may take a layout ranks "
          "behind comfortable ones within 5%.\n"));
  found.result.best[2].predicted.seconds = 0.99;
  found.result.best[2].use = 0.9;
  CHECK(has(shown(), "\n2, 3 are up to 2.0% faster than 1, but tight: "));
  // Of what --max-memory leaves.
  found.forecasts[0].memory = 0.96 * found.memory;
  CHECK(!has(shown(), "very tight"));
  found.forecasts[0].memory = 0.98 * found.memory;
  CHECK(has(shown(), "1 is very tight: it takes 98% of what a rank may take"));
  resize(found, 1);
  CHECK(has(shown(), "\n1 is very tight: "));
}

TEST_CASE("JSON has sizes as whole numbers, and room of what a rank may take, as the table has") {
  const boost::json::object json = forecast::to_json(found_here());
  const boost::json::array& layouts = json.at("layouts").as_array();
  REQUIRE(layouts.size() == 3);
  const std::pair<const char*, int64_t> sizes[] = {
      {"tp", 8}, {"cp", 1},           {"pp", 4},          {"stages_per_rank", 2}, {"ep", 1},
      {"dp", 2}, {"dp_replicate", 1}, {"micro_batch", 1}, {"micro_batches", 128}};
  for (const auto& [name, size] : sizes) {
    CAPTURE(name);
    const boost::json::value& value = layouts[0].at(name);
    REQUIRE(value.is_int64());
    CHECK(value.as_int64() == size);
  }
  const boost::json::object& time = layouts[0].at("time").as_object();
  CHECK(time.at("machine").at("ranks_per_host").is_int64());
  const boost::json::value& memory = time.at("memory");
  CHECK(memory.at("usable").as_int64() == std::llround(50 * kGiB));
  CHECK(memory.at("room").as_double() == doctest::Approx(0.2));
  CHECK(memory.at("fits").as_bool());
  CHECK(memory.at("fit").as_string() == "comfortable");
}

TEST_CASE("a layout that is asked about has its place, and seconds and bytes by part") {
  Found found = found_here();
  found.forecasts[1].time.parts.products = 0.75;
  found.forecasts[1].time.parts.shard = 0.26;
  found.forecasts[1].bytes.emplace();
  found.forecasts[1].bytes->weights = std::llround(30 * kGiB);
  found.forecasts[1].bytes->activations = std::llround(10 * kGiB);
  forecast::Why why;
  why.asked = "dp64 megatron_fsdp";
  why.layout = found.result.best[1];
  why.forecast = found.forecasts[1];
  why.set = kSets;
  why.listed = true;
  why.before = 1;
  found.why = why;
  const std::string text = forecast::draw({false, true, 200}, found);
  CHECK(has(text,
            "\nWhy dp64 megatron_fsdp\n"
            "  megatron_fsdp dp64 replicas8 outer_dp_sharding_strategy=1, micro 1x1, recompute "
            "none: number 2 of the list, 1.0% slower than the first\n"));
  CHECK(has(text, "\nuse: " + std::string(kSets) + "\n"));
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : lines_in(text)) rows.push_back(words_in(line));
  for (const char* row :
       {"products 750.0 ms", "shards 260.0 ms", "weights 30.0 GiB", "activations 10.0 GiB"}) {
    CAPTURE(row);
    CHECK(std::ranges::count(rows, words_in(row)) == 1);
  }
  CHECK(!has(text, "\ngradients"));  // none
  const boost::json::value json = forecast::to_json(found);
  CHECK(json.at("why").at("rank").to_number<int>() == 2);
  CHECK(json.at("why").at("behind").as_double() == doctest::Approx(0.01));
  CHECK(json.at("why").at("refused").is_null());
  CHECK(boost::json::serialize(json.at("why").at("layout")) ==
        boost::json::serialize(json.at("layouts").at(1)));

  found.why->listed = false;
  found.why->before = 3;
  CHECK(has(forecast::draw({false, true, 200}, found), ": behind the 3 of the list, 1.0% slower"));
  found.why->before = 2;
  CHECK(has(forecast::draw({false, true, 200}, found), "it would be number 3, 1.0% slower"));
}

TEST_CASE("what cannot be says why, with numbers, and so do sizes that no way makes fit") {
  Found found = found_here();
  found.why.emplace();
  found.why->asked = "ddp";
  found.why->refused =
      Error(ErrorCode::memory_exceeded, "at its smallest it takes 96.2 GiB").help("fits with pp 2");
  forecast::RefusedFamily family;
  family.smallest.strategy = "fsdp2";
  family.smallest.job.ranks = family.smallest.job.shard = 64;
  family.smallest.memory.states = 61 * kGiB;
  family.smallest.memory.activations = 35.2 * kGiB;
  family.fits_with = "tp 2";
  found.families.push_back(family);
  const std::string text = forecast::draw({false, true, 200}, found);
  CHECK(
      has(text, "\nWhy ddp\n  E0319: at its smallest it takes 96.2 GiB\n  help: fits with pp 2\n"));
  CHECK(has(text,
            "\n  too large: fsdp2 dp64, 96.2 GiB of 50.0 GiB by the model at its smallest: states "
            "61.0 GiB, activations 35.2 GiB; fits with tp 2\n"));
  const boost::json::value json = forecast::to_json(found);
  CHECK(json.at("why").at("layout").is_null());
  CHECK(json.at("why").at("rank").is_null());
  CHECK(json.at("why").at("refused").at("code").as_string() == "E0319");
  CHECK(json.at("why").at("refused").at("help").at(0).as_string() == "fits with pp 2");
  const boost::json::value& large = json.at("too_large").at(0);
  CHECK(large.at("fits_with").as_string() == "tp 2");
  CHECK(large.at("parts").at("states").to_number<int64_t>() == std::llround(61 * kGiB));
}

TEST_CASE("what puts another layout first is told, the nearest three in words") {
  Found found = found_here();
  // Of those that are compared: as many as are shown, and ten at most.
  const std::pair<size_t, const char*> rows[] = {{2, "the second"},
                                                 {3, "another of the first 3"},
                                                 {10, "another of the first 10"},
                                                 {12, "another of the first 10"}};
  for (const auto& [shown, said] : rows) {
    CAPTURE(shown);
    Found some = found;
    resize(some, shown);
    CHECK(has(forecast::draw({false, true, 300}, some),
              "\nThe first two are equal: within 3% of each other. None of the figures that are "
              "tried, halved or doubled, would put " +
                  std::string(said) + " first.\n"));
  }
  CHECK(forecast::to_json(found).at("turns").as_array().empty());
  found.crossovers = {{{"network.nic"}, 0.98, "the network between hosts", "2% slower"},
                      {{"peak.bf16", "peak.fp32"}, 1.08, "products and attention", "8% faster", 4},
                      {{"overlap.kappa"}, 1.5, "what kernels lose beside collectives", "50% more"},
                      {{"device.bandwidth"}, 0.6, "memory", "40% slower"}};
  CHECK(
      has(forecast::draw({false, true, 300}, found),
          "Another would be first if the network between hosts were 2% slower (2), or products and "
          "attention 8% faster (4), or what kernels lose beside collectives 50% more (2).\n"));
  const boost::json::array turns = forecast::to_json(found).at("turns").as_array();
  REQUIRE(turns.size() == 4);
  CHECK(boost::json::serialize(turns[1].at("figures")) == R"(["peak.bf16","peak.fp32"])");
  CHECK(turns[1].at("factor").as_double() == 1.08);
  CHECK(turns[1].at("first").to_number<int64_t>() == 4);
  CHECK(turns[3].at("figures").at(0).as_string() == "device.bandwidth");
  // One layout has nothing to change places with.
  resize(found, 1);
  CHECK(!has(forecast::draw({false, true, 300}, found), "would be first"));
}

}  // namespace show_search_test
