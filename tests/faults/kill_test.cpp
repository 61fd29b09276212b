// SIGKILL at any moment, in the middle of a save too: the same command continues, and ends where an
// unbroken run does.
#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <thread>

#include "runs.h"

using namespace faults;
namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}
void sleep_ms(double ms) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
}

struct Usual {
  double run_ms = 0, save_ms = 0;  // a whole run; a save, while its temporary folder is there
};

// The save of a step begins; false: the run ended without.
bool wait_for_save(const Program& program, int64_t step) {
  fs::path folder = temporary_of(program, step);
  for (Clock::time_point begin = Clock::now(); ms_since(begin) < 60000;) {
    std::error_code failed;
    if (fs::exists(folder, failed)) return true;
    if (::kill(program.pid(), 0) != 0 ||
        fs::exists(folder.parent_path() / folder.stem().string().substr(1), failed))
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

Usual measure(const Layout& layout) {
  Program program;
  Clock::time_point begin = Clock::now();
  program.start(layout.arguments());
  Usual usual;
  int64_t seen = 0;
  for (int64_t step = layout.every; step <= layout.steps; step += layout.every) {
    if (!wait_for_save(program, step)) continue;
    Clock::time_point save = Clock::now();
    std::error_code failed;
    while (fs::exists(temporary_of(program, step), failed))
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    usual.save_ms += ms_since(save);
    ++seen;
  }
  REQUIRE(program.wait().code == 0);
  usual.run_ms = ms_since(begin);
  REQUIRE(seen > 0);
  usual.save_ms /= static_cast<double>(seen);
  return usual;
}

// A run that is killed once, and continued. Returns what to say of it; empty when it had ended
// before. `inside`: whether it was killed while a save was under way.
std::string kill_once(const Layout& layout, const Usual& usual, bool aim_inside,
                      std::mt19937& random, bool& inside) {
  auto uniform = [&](double to) { return std::uniform_real_distribution<double>(0, to)(random); };
  auto pick = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  // Of one rank, or of the launcher with all ranks.
  int64_t victim = pick(0, 2 * layout.ranks - 1);
  bool all = victim >= layout.ranks;
  int64_t step = layout.every * pick(1, layout.steps / layout.every);
  Program program;
  program.start(layout.arguments());
  std::vector<pid_t> ranks;
  for (int64_t rank = 0; rank < layout.ranks; ++rank) ranks.push_back(program.rank(rank));
  double delay = aim_inside ? uniform(usual.save_ms * 1.1) : uniform(usual.run_ms);
  if (aim_inside && !wait_for_save(program, step)) return "";
  sleep_ms(delay);
  if (all) {
    std::vector<pid_t> victims = ranks;
    victims.push_back(program.pid());
    std::shuffle(victims.begin(), victims.end(), random);
    for (pid_t pid : victims) ::kill(pid, SIGKILL);
  } else {
    ::kill(ranks[static_cast<size_t>(victim)], SIGKILL);
  }
  // A kill of all stops what would tidy up; after that of one rank the others may get to it.
  std::error_code failed;
  bool leftover = false;
  for (int64_t s = layout.every; s <= layout.steps; s += layout.every)
    leftover = leftover || fs::exists(temporary_of(program, s), failed);
  Ended ended = program.reap();
  if (ended.code == 0) return "";
  CAPTURE(ended.err);
  CHECK(ended.code == 137);
  inside = leftover;
  std::vector<int64_t> steps = verified_steps(program);
  continue_and_compare(program, layout);
  char text[200];
  std::snprintf(text, sizeof text, "%s: %s killed, %s; continued after step %lld, equal",
                layout.text().c_str(), all ? "all" : ("rank " + std::to_string(victim)).c_str(),
                leftover ? "in a save" : "outside of saves",
                steps.empty() ? 0LL : static_cast<long long>(steps.back()));
  return text;
}

// All of it is read before the run ends, and it begins anew.
const std::string kNotes = MESHWRIGHT_SOURCE_DIR "/tests/data/parity/README.md";
constexpr int64_t kBytesASample = 40;

Layout of_a_mix() {
  Layout out;
  out.mix = "[{name = \"ids\", path = \"" MESHWRIGHT_SOURCE_DIR
            "/tests/data/parity/train.bin\", schedule = { 5 = 0.1 }}, {name = \"notes\", kind = "
            "\"text\", "
            "path = \"" +
            kNotes +
            "\", schedule = { 5 = 0.9 }}, {name = \"late\", kind = \"mock\", weight = 0, schedule "
            "= { 8 = "
            "0.4 }}]";
  return out;
}

// The first row behind the last sample of the notes.
int64_t end_of_notes(const Words& rows) {
  const auto all = (static_cast<int64_t>(fs::file_size(kNotes)) - 1) / kBytesASample;
  for (size_t row = 0; row < rows.size(); ++row)
    if (boost::json::parse(rows[row]).at("source_samples").at("notes").as_int64() > all)
      return static_cast<int64_t>(row) + 1;
  return 0;
}

}  // namespace

TEST_CASE(
    "SIGKILL of all at every boundary of a mix: counts and losses of its sources are those of an "
    "unbroken run") {
  const Layout layout = of_a_mix();
  const int64_t anew = end_of_notes(unbroken_rows(layout));
  REQUIRE(anew > 6);
  REQUIRE(anew < layout.steps);
  // Right before the line of a row is written: before the first checkpoint and right before and
  // after one, at changes of the weights, where a source begins anew, and at the end.
  for (const int64_t row : {int64_t{1}, layout.every, layout.every + 1, int64_t{5}, int64_t{6},
                            int64_t{9}, anew, anew + 1, layout.steps}) {
    CAPTURE(row);
    Program program;
    const fs::path log = program.folder() / "shim.log";
    program.start(layout.arguments(),
                  failing(program.run_folder() / "metrics.jsonl", "write", row, "hang", 0, log));
    std::vector<pid_t> victims{program.pid()};
    for (int64_t rank = 0; rank < layout.ranks; ++rank) victims.push_back(program.rank(rank));
    for (Clock::time_point begin = Clock::now(); !fs::exists(log) && ms_since(begin) < 60000;)
      sleep_ms(1);
    REQUIRE(fs::exists(log));
    for (pid_t pid : victims) ::kill(pid, SIGKILL);
    CHECK(program.reap().code == 137);
    CHECK(training_rows(program).size() == static_cast<size_t>(row - 1));
    continue_and_compare(program, layout);
  }
}

TEST_CASE(
    "SIGKILL of a rank or of all at random moments, half of them inside saves: continued, and "
    "equal to an unbroken run" *
    doctest::test_suite("whole")) {
  Record record;
  unsigned seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const int kKills = record.full() ? 100 : 4;
  std::vector<Layout> layouts;
  for (const char* strategy : {"ddp", "fsdp2"})
    for (bool background : {false, true}) {
      layouts.emplace_back();
      layouts.back().strategy = strategy;
      layouts.back().background = background;
    }
  std::vector<Usual> usual;
  for (const Layout& layout : layouts) usual.push_back(measure(layout));
  int in_saves = 0, outside = 0, tries = 0;
  record.say("kills at random moments, seed " + std::to_string(seed));
  while (in_saves + outside < kKills && tries < 10 * kKills) {
    size_t at = static_cast<size_t>(tries++) % layouts.size();
    bool aim = in_saves < kKills / 2, inside = false;
    CAPTURE(tries);
    INFO(layouts[at].text());
    std::string told = kill_once(layouts[at], usual[at], aim, random, inside);
    if (told.empty()) continue;
    if (inside)
      ++in_saves;
    else if (outside < kKills / 2)
      ++outside;
    else
      told += " (beyond the count)";
    record.say(told);
  }
  record.say(std::to_string(in_saves) + " kills inside saves, " + std::to_string(outside) +
             " outside, all continued and equal");
  CHECK(in_saves >= kKills / 2);
  CHECK(in_saves + outside == kKills);
}
