// The whole matrix of job_rows.cpp, of generation and of embedded training, each with three seeds
// of delays, beside the CPU. tests/fake_device/matrix runs it and keeps the table.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "jobs.h"

namespace matrix_test {

using namespace fake_device_jobs;

const std::string kTp = "distributed.tp_size=2", kDdp = "distributed.strategy=ddp",
                  kFsdp2 = "distributed.strategy=fsdp2";
constexpr int kSeeds = 3, kTokens = 16;
constexpr size_t kEmbedSteps = 11;

// Of the first ones.
double largest_difference(const std::vector<double>& got, const std::vector<double>& want,
                          size_t most = SIZE_MAX) {
  if (got.size() != want.size() || got.empty()) return INFINITY;
  double out = 0;
  for (size_t i = 0; i < std::min(got.size(), most); ++i) {
    const double difference = std::abs(got[i] - want[i]) / std::abs(want[i]);
    if (!(difference <= out)) out = difference;  // also what is not a number
  }
  return out;
}

// Of all seeds of a job.
struct Found {
  double loss = 0, norm = 0, seconds = 0;
  long races = 0, wrong = 0;
  StepCosts costs;
  bool has_steps = true;  // of training

  void add(const Ended& device);
  void add(const StepCosts& more) {
    costs.waits = std::max(costs.waits, more.waits);
    costs.left = std::max(costs.left, more.left);
    costs.grown = std::max(costs.grown, more.grown);
  }
};

// The table, or nothing where nobody asked for it.
struct Table {
  FILE* file = nullptr;
  Table() {
    if (const char* path = std::getenv("FAKE_DEVICE_RESULTS")) file = std::fopen(path, "ae");
  }
  ~Table() {
    if (file != nullptr) std::fclose(file);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  void write(const std::string& name, int ranks, const Found& found) const {
    if (file == nullptr) return;
    std::fprintf(file, "%-48s %7d %10.1e %10.1e %6ld %6ld %7.1f %6lld", name.c_str(), ranks,
                 found.loss, found.norm, found.races, found.wrong, found.seconds,
                 static_cast<long long>(found.costs.waits));
    if (found.has_steps)
      std::fprintf(file, " %7lld %7lld\n", static_cast<long long>(found.costs.left),
                   static_cast<long long>(found.costs.grown));
    else
      std::fprintf(file, " %7s %7s\n", "-", "-");
    std::fflush(file);
  }
};

long wrong_lines_of(const Ended& ended) {
  long out = 0;
  for (const std::string& log : ended.logs)
    for (const std::string& line : wrong_lines(log)) {
      MESSAGE(line);
      ++out;
    }
  return out;
}

void Found::add(const Ended& device) {
  seconds += device.seconds;
  races += fake_device_jobs::races(device);
  wrong += wrong_lines_of(device);
}

// Of all ranks, in all that it did.
int64_t most_waits_of(const Ended& ended) {
  int64_t out = 0;
  for (const boost::json::object& rank : ended.counters) {
    int64_t waits = 0;
    for (const boost::json::value& step : rank.at("steps").as_array())
      waits += step.at("host_waits").to_number<int64_t>();
    out = std::max(out, waits);
  }
  return out;
}

}  // namespace matrix_test

using namespace matrix_test;

TEST_CASE("the whole matrix of training jobs, with seeds of delays" * doctest::skip()) {
  const Table table;
  for (const Row& known : kJobs) {
    DOCTEST_SUBCASE((known.name + " on " + std::to_string(known.ranks)).c_str()) {
      Row row = known;
      row.steps = std::max(row.steps, kWatchedSteps + row.resume_after);
      CAPTURE(row.name);
      CAPTURE(row.ranks);
      const Ended host = train(row, On::host);
      CHECK_MESSAGE(host.code == 0, host.said);
      Found found;
      for (int seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        const Ended device = train(row, On::device, {"FAKE_DEVICE_DELAYS=" + std::to_string(seed)});
        CHECK_MESSAGE(device.code == 0, device.said);
        const size_t most = compared_steps(row);
        found.loss = std::max(found.loss, largest_difference(device.losses, host.losses, most));
        found.norm = std::max(found.norm, largest_difference(device.norms, host.norms, most));
        found.add(device);
        found.add(check_steps(device, row));
      }
      CHECK(host.losses.size() == row.steps);
      CHECK(found.loss <= row.tolerance);
      CHECK(found.norm <= std::max(row.tolerance, kFloat));
      CHECK(found.wrong == 0);
      table.write(row.name, row.ranks, found);
    }
  }
}

namespace {

struct Generation {
  std::string name;
  int ranks;
  Strings sets;
};

// Ids are the CPU's, and the host waits so often for each token.
void check_generation(const Generation& job, int seeds, const Table& table) {
  CAPTURE(job.name);
  auto generate = [&](On on, const Strings& variables, int tokens) {
    const Folder folder;
    Strings words{"generate",
                  "tests/data/parity/llama",
                  "--tokens",
                  "1,2,3",
                  "--max-new",
                  std::to_string(tokens),
                  "--json",
                  "--nproc",
                  std::to_string(job.ranks)};
    Strings sets{on == On::device ? "dist_env.device=cuda" : "dist_env.device=cpu"};
    sets.insert(sets.end(), job.sets.begin(), job.sets.end());
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return run_program(folder.path, words, on, variables);
  };
  auto ids = [](const Ended& ended) {
    const size_t at = ended.said.find("\"new_ids\"");
    return at == std::string::npos ? ended.said
                                   : ended.said.substr(at, ended.said.find(']', at) - at);
  };
  auto count_of = [&](const Ended& ended) {
    const std::string found = ids(ended);
    return std::count(found.begin(), found.end(), ',') + int64_t{1};
  };
  const Ended host = generate(On::host, {}, kTokens);
  CHECK_MESSAGE(host.code == 0, host.said);
  Found found;
  found.has_steps = false;
  int64_t waits = 0, tokens = 0;  // of the last seed's run
  for (int seed = 1; seed <= seeds; ++seed) {
    const Ended device =
        generate(On::device, {"FAKE_DEVICE_DELAYS=" + std::to_string(seed)}, kTokens);
    CHECK_MESSAGE(device.code == 0, device.said);
    CHECK(ids(device) == ids(host));
    found.add(device);
    waits = most_waits_of(device);
    tokens = count_of(device);
  }
  // Of a token: for its ids to the device and its logits back. A longer text takes more memory.
  const Ended longer = generate(On::device, {}, 2 * kTokens);
  CHECK_MESSAGE(longer.code == 0, longer.said);
  const int64_t more = count_of(longer) - tokens, waited = most_waits_of(longer) - waits;
  CHECK(more > 0);
  CHECK(waited > 0);
  CHECK(waited <= more * most_waits(job.name, job.ranks));
  found.costs.waits = more > 0 ? waited / more : 0;
  CHECK(found.wrong == 0);
  table.write(job.name, job.ranks, found);
}

}  // namespace

TEST_CASE("ranks that share out a model's tensors generate on the fake device what the CPU does") {
  check_generation({"generate, tp", 2, {kFsdp2, kTp}}, /*seeds=*/1, Table());
}

TEST_CASE("the whole matrix of generation, with seeds of delays" * doctest::skip()) {
  const Table table;
  for (const Generation& job :
       {Generation{"generate", 1, {}}, Generation{"generate, fsdp2", 2, {kFsdp2}},
        Generation{"generate, tp", 2, {kFsdp2, kTp}}}) {
    DOCTEST_SUBCASE(job.name.c_str()) { check_generation(job, kSeeds, table); }
  }
}

namespace {

struct Embedded {
  std::string name;
  int ranks;
  Strings sets;
};

// The example of a program of one's own, whose model is built on the host.
void check_embedded(const Embedded& job, int seeds, const Table& table) {
  CAPTURE(job.name);
  auto embed = [&](On on, const Strings& variables) {
    const Folder folder;
    Strings words{MESHWRIGHT_BUILD_DIR "/bin/fake_device_embed", "examples/recipes/embed/job.toml",
                  on == On::device ? "dist_env.device=cuda" : "dist_env.device=cpu",
                  "step_scheduler.max_steps=" + std::to_string(kEmbedSteps)};
    words.insert(words.end(), job.sets.begin(), job.sets.end());
    return run_ranks(folder.path, words, job.ranks, on, variables);
  };
  // Of the first and the last step.
  auto losses = [](const Ended& ended) {
    std::vector<double> out;
    for (size_t at = 0; (at = ended.said.find("  loss ", at)) != std::string::npos; ++at)
      out.push_back(std::strtod(ended.said.c_str() + at + 7, nullptr));
    return out;
  };
  const Ended host = embed(On::host, {});
  CHECK_MESSAGE(host.code == 0, host.said);
  CHECK(losses(host).size() == 2);
  Found found;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Ended device = embed(On::device, {"FAKE_DEVICE_DELAYS=" + std::to_string(seed)});
    CHECK_MESSAGE(device.code == 0, device.said);
    CHECK(device.logs.size() >= static_cast<size_t>(job.ranks));
    found.loss = std::max(found.loss, largest_difference(losses(device), losses(host)));
    found.add(device);
    Row row;
    row.name = job.name, row.ranks = job.ranks, row.sets = job.sets, row.steps = kEmbedSteps;
    found.add(check_steps(device, row));
  }
  CHECK(found.loss <= 2e-6);  // six digits are printed
  CHECK(found.wrong == 0);
  table.write(job.name, job.ranks, found);
}

}  // namespace

TEST_CASE("a program of one's own trains on the fake device, on two ranks") {
  check_embedded({"embed", 2, {}}, /*seeds=*/1, Table());
}

TEST_CASE("the whole matrix of embedded training, with seeds of delays" * doctest::skip()) {
  const Table table;
  for (const Embedded& job :
       {Embedded{"embed", 1, {}}, Embedded{"embed", 2, {}}, Embedded{"embed, ddp", 4, {kDdp}},
        Embedded{"embed, pp",
                 2,
                 {"distributed.pp_size=2", "distributed.pipeline.pp_microbatch_size=4"}}}) {
    DOCTEST_SUBCASE((job.name + " on " + std::to_string(job.ranks)).c_str()) {
      check_embedded(job, kSeeds, table);
    }
  }
}
