#include "runs.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/inspect.h"

namespace faults {

namespace fs = std::filesystem;
using namespace meshwright;

std::string Layout::text() const {
  return strategy + " on " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
         (mix.empty() ? "" : ", of a mix") + (background ? ", asynchronous" : "");
}

Words Layout::arguments(const Words& more) const {
  // Nobody may wait for a timeout, however busy the machine is.
  Words out =
      job_words(ranks, {"distributed.strategy=" + strategy, "dist_env.timeout_minutes=1",
                        "step_scheduler.max_steps=" + std::to_string(steps),
                        "checkpoint.every_steps=" + std::to_string(every),
                        std::string("checkpoint.async=") + (background ? "true" : "false")});
  if (!mix.empty()) {
    const Words sets = job_words(0, {"dataset.path=none", "dataset.mix=" + mix});
    out.insert(out.end(), sets.begin(), sets.end());
  }
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

const Words& unbroken_rows(const Layout& layout) {
  static std::map<std::string, Words> made;
  auto& rows = made[layout.strategy + std::to_string(layout.ranks) + "/" +
                    std::to_string(layout.steps) + layout.mix];
  if (rows.empty()) {
    Program program;
    Layout plain = layout;
    plain.every = 0;
    plain.background = false;
    Ended ended = program.run(plain.arguments());
    CAPTURE(ended.err);
    REQUIRE(ended.code == 0);
    rows = training_rows(program);
    REQUIRE(rows.size() == static_cast<size_t>(layout.steps));
  }
  return rows;
}

fs::path checkpoint_folder(const Program& program) { return program.run_folder() / "checkpoints"; }

fs::path temporary_of(const Program& program, int64_t step) {
  return checkpoint::temporary_folder(checkpoint_folder(program), step);
}

std::vector<int64_t> verified_steps(const Program& program) {
  std::vector<int64_t> out;
  for (const checkpoint::Found& found : checkpoint::find_all(checkpoint_folder(program))) {
    CHECK_MESSAGE(found.problem.empty(), found.problem);
    if (!found.problem.empty()) continue;
    for (const Error& error : checkpoint::verify_checkpoint(found.path, [](int64_t) {}).damage)
      FAIL_CHECK(error.message());
    CHECK(checkpoint::read_meta(found.path).step == found.step);
    out.push_back(found.step);
  }
  return out;
}

void continue_and_compare(Program& program, const Layout& layout, const Words& more) {
  Ended ended = program.run(layout.arguments(more));
  CAPTURE(ended.out);
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(training_rows(program) == unbroken_rows(layout));
  std::vector<int64_t> steps = verified_steps(program);
  CHECK((!steps.empty() && steps.back() == layout.steps));
  CHECK(fs::read_symlink(checkpoint_folder(program) / "latest") ==
        checkpoint::step_name(layout.steps));
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint_folder(program))) {
    std::string name = entry.path().filename().string();
    CHECK_MESSAGE((name == "latest" || checkpoint::step_of(name)), name);
  }
}

Environment failing(const fs::path& under, const std::string& call, int64_t nth,
                    const std::string& fault, std::optional<int64_t> rank, const fs::path& log) {
  Environment out{{"LD_PRELOAD", MESHWRIGHT_FILE_SHIM},
                  {"FILE_SHIM_UNDER", under.string()},
                  {"FILE_SHIM_CALL", call},
                  {"FILE_SHIM_NTH", std::to_string(nth)},
                  {"FILE_SHIM_FAULT", fault}};
  if (rank) out.emplace_back("FILE_SHIM_RANK", std::to_string(*rank));
  if (!log.empty()) out.emplace_back("FILE_SHIM_LOG", log.string());
  return out;
}

Record::Record() : full_(std::getenv("MESHWRIGHT_FULL_RUN") != nullptr) {
  if (full_) file_.open(std::getenv("MESHWRIGHT_FULL_RUN"), std::ios::app);
  if (full_) REQUIRE(file_.good());
}

void Record::say(const std::string& line) {
  if (!full_) return;
  (file_ << line << '\n').flush();
  (std::cout << line << '\n').flush();
}

}  // namespace faults
