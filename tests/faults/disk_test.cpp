// A disk that fails or is full at any write, sync, rename, mkdir, link, open or close of a save:
// the old or the new checkpoint is there, whole, and the same command continues.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "runs.h"
#include "sdk/comm/tests/sampled.h"

using namespace faults;
namespace fs = std::filesystem;

namespace {

Layout layout_of(const char* strategy, bool background, int64_t steps) {
  Layout layout;
  layout.strategy = strategy;
  layout.background = background;
  layout.steps = steps;
  layout.every = 2;
  return layout;
}

struct Trial {
  Layout layout = layout_of("fsdp2", false, 4);
  std::string call, fault;
  int64_t nth = 1, rank = 0, keep = 1;  // the one before goes as soon as there is a new one
  std::string on_failure = "stop";
};

// Whether the call was reached, and how the run ended.
struct Told {
  bool failed = false;
  Ended ended;
  std::string path;  // whose call failed
};

Told run_shimmed(Program& program, const Trial& trial) {
  fs::path log = program.folder() / "shim.log";
  program.start(
      trial.layout.arguments({"--set", "checkpoint.on_failure=" + trial.on_failure, "--set",
                              "checkpoint.keep=" + std::to_string(trial.keep)}),
      failing(checkpoint_folder(program), trial.call, trial.nth, trial.fault, trial.rank, log));
  Told told;
  told.ended = program.wait();
  std::ifstream in(log);
  std::string call, number;
  told.failed = static_cast<bool>(in >> call >> number >> told.path);
  return told;
}

// One trial of a run that stops at a failed save; false: the call was not reached.
bool stop_and_continue(const Trial& trial, Record& record) {
  CAPTURE(trial.call);
  CAPTURE(trial.fault);
  CAPTURE(trial.nth);
  CAPTURE(trial.rank);
  INFO(trial.layout.text());
  Program program;
  Told told = run_shimmed(program, trial);
  CAPTURE(told.ended.err);
  CAPTURE(told.path);
  if (!told.failed) {
    CHECK(told.ended.code == 0);
    return false;
  }
  bool harmless = told.ended.code == 0;
  if (trial.fault == "short") CHECK(harmless);
  if (!harmless) {
    CHECK(told.ended.code == 7);
    CHECK(told.ended.says("error[E0705]: cannot "));
    // A temporary name's error may speak of the name it was to become.
    CHECK(told.ended.says(checkpoint_folder(program).string()));
    CHECK(told.ended.says(trial.fault == "EIO" ? "Input/output error (EIO)"
                                               : "No space left on device (ENOSPC)"));
    CHECK(told.ended.says("help: "));
  }
  std::vector<int64_t> steps = verified_steps(program);
  // Nothing is deleted before the new one is durable.
  if (told.path.find("step_00000004") != std::string::npos) CHECK(!steps.empty());
  if (harmless) CHECK((!steps.empty() && steps.back() == trial.layout.steps));
  continue_and_compare(program, trial.layout, {"--set", "checkpoint.keep=1"});
  record.say(trial.layout.text() + ", rank " + std::to_string(trial.rank) + ": " + trial.call +
             " " + std::to_string(trial.nth) + " " + trial.fault + " of " +
             fs::path(told.path).lexically_relative(checkpoint_folder(program)).string() + ": " +
             (harmless ? "harmless"
                       : "told, continued after step " +
                             std::to_string(steps.empty() ? 0 : steps.back())) +
             ", equal");
  return true;
}

}  // namespace

TEST_CASE(
    "every file operation of a save fails once: path and reason are named, a whole checkpoint is "
    "there, the run continues" *
    doctest::test_suite("whole")) {
  Record record;
  struct Row {
    const char *call, *fault;
    std::vector<int64_t> sample;
  };
  const std::vector<Row> rows = {
      {"write", "EIO", {2}},    {"write", "ENOSPC", {}}, {"write", "full", {5}},
      {"write", "short", {3}},  {"fsync", "EIO", {6}},   {"rename", "EIO", {3}},
      {"mkdir", "ENOSPC", {2}}, {"symlink", "EIO", {2}}, {"open", "ENOSPC", {}},
      {"close", "EIO", {}},     {"remove", "EIO", {2}}};
  if (!record.full()) {
    int64_t rank = 0;
    for (const Row& row : rows)
      for (int64_t nth : row.sample) {
        Trial trial;
        trial.layout = layout_of(rank % 2 ? "ddp" : "fsdp2", rank % 4 == 0, 4);
        trial.call = row.call;
        trial.fault = row.fault;
        trial.nth = nth;
        ++rank;
        CHECK(stop_and_continue(trial, record));
      }
    return;
  }
  int64_t failed = 0;
  for (const Layout& layout :
       {layout_of("fsdp2", false, 4), layout_of("ddp", false, 4), layout_of("fsdp2", true, 4)})
    for (int64_t rank : {0, 1})
      for (const Row& row : rows) {
        Trial trial;
        trial.layout = layout;
        trial.call = row.call;
        trial.fault = row.fault;
        trial.rank = rank;
        while (stop_and_continue(trial, record)) ++trial.nth;
        int64_t nth = trial.nth;
        failed += nth - 1;
        record.say(layout.text() + ", rank " + std::to_string(rank) + ": all " +
                   std::to_string(nth - 1) + " calls of " + row.call + " done with " + row.fault);
      }
  record.say(std::to_string(failed) + " failing calls in all");
}

TEST_CASE(
    "checkpoint.on_failure = continue: a failed save is told, training goes on, the next one is "
    "good") {
  Record record;
  for (bool background : {false, true})
    for (int64_t rank : {0, 1}) {
      if (!record.full() && background == (rank == 0)) continue;
      Trial trial;
      trial.layout = layout_of("fsdp2", background, 6);
      trial.call = "write";
      trial.fault = "ENOSPC";
      trial.nth = 1;
      trial.rank = rank;
      trial.on_failure = "continue";
      trial.keep = 2;
      INFO(trial.layout.text());
      CAPTURE(rank);
      Program program;
      Told told = run_shimmed(program, trial);
      CAPTURE(told.ended.err);
      CAPTURE(told.ended.out);
      CHECK(told.failed);
      CHECK(told.ended.code == 0);
      CHECK(told.ended.out.find("no checkpoint: cannot write " +
                                temporary_of(program, 2).string()) != std::string::npos);
      CHECK(told.ended.out.find("No space left on device (ENOSPC)") != std::string::npos);
      CHECK(verified_steps(program) == std::vector<int64_t>{4, 6});
      CHECK(training_rows(program) == unbroken_rows(trial.layout));
      record.say(trial.layout.text() + ", rank " + std::to_string(rank) +
                 ": went on after a failed save");
    }
}

TEST_CASE(
    "a disk that is full from some moment on: with on_failure = continue all steps are trained, "
    "and the last good one is kept" *
    doctest::test_suite("whole")) {
  Record record;
  for (const char* strategy : {"fsdp2", "ddp"}) {
    if (strategy == std::string("ddp") && !meshwright::all_layouts()) break;
    Trial trial;
    trial.layout = layout_of(strategy, false, 8);
    trial.call = "write";
    trial.fault = "full";
    trial.rank = 1;
    trial.on_failure = "continue";
    INFO(trial.layout.text());
    // Somewhere in the second save.
    trial.nth = 4;
    Program program;
    Told told = run_shimmed(program, trial);
    CAPTURE(told.ended.err);
    CAPTURE(told.ended.out);
    CHECK(told.failed);
    // The last step's has to be there, or the run is not done.
    CHECK(told.ended.code == 7);
    CHECK(told.ended.says("No space left on device (ENOSPC)"));
    CHECK(training_rows(program) == unbroken_rows(trial.layout));
    std::vector<int64_t> kept = verified_steps(program);
    REQUIRE(kept.size() == 1);
    CHECK(kept[0] < trial.layout.steps);
    continue_and_compare(program, trial.layout);
    record.say(trial.layout.text() + ": full from write " + std::to_string(trial.nth) +
               " on; step " + std::to_string(kept[0]) + " was kept and continued, equal");
  }
}

TEST_CASE(
    "checkpoint.on_failure = continue: metrics.jsonl and run.log on a full disk end nothing, and "
    "go on when there is room" *
    doctest::test_suite("whole")) {
  size_t turn = 0;  // half: there is room again for the one, and not for the other
  for (const char* name : {"metrics.jsonl", "run.log"})
    for (bool again : {true, false}) {
      if (const size_t number = turn++; !meshwright::sampled(number + number / 2, 2)) continue;
      CAPTURE(name);
      CAPTURE(again);
      Program program;
      Layout layout = layout_of("fsdp2", false, 8);
      fs::path file = program.run_folder() / name;
      program.start(layout.arguments({"--set", "checkpoint.on_failure=continue"}),
                    failing(file, "write", 8, again ? "ENOSPC" : "full", 0));
      Ended ended = program.wait();
      CAPTURE(ended.out);
      CAPTURE(ended.err);
      CHECK(ended.code == 0);
      CHECK(ended.out.find("warning: cannot write " + file.string() +
                           ": No space left on device; the run goes on") != std::string::npos);
      CHECK((ended.out + ended.err).find(again ? "" : file.string() + " lacks ") !=
            std::string::npos);
      CHECK(verified_steps(program).back() == layout.steps);
      if (again || std::string(name) != "metrics.jsonl")
        CHECK(training_rows(program) == unbroken_rows(layout));
      std::ifstream in(file, std::ios::binary);
      std::string text((std::istreambuf_iterator<char>(in)), {});
      CHECK(text.ends_with('\n'));
    }
  // Without that request the run ends, as before.
  Program program;
  Layout layout = layout_of("fsdp2", false, 8);
  program.start(layout.arguments(),
                failing(program.run_folder() / "metrics.jsonl", "write", 3, "full", 0));
  CHECK(program.wait().code == 7);
}
