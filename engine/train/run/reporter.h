// What rank 0 tells of a run: into the run's folder, onto the screen, or both. The other ranks'
// reporter tells nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/train/run/expert_load.h"
#include "engine/train/run/metrics.h"
#include "engine/train/run/monitors.h"
#include "engine/train/run/saver.h"
#include "engine/train/step/evaluation.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

class Reporter {
 public:
  using Tell = std::function<void(const std::string&)>;
  // `live`: standard output is a terminal. `tell`: hears lines in its place, but not those of
  // steps, which an application has by itself.
  Reporter(const report::Style& style, bool live, Tell tell = {})
      : style_(style), live_(live), tell_(std::move(tell)) {}
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  // Rank 0: from here on it tells. `steps`: as RunFolder's.
  // `details`: as Progress's.
  void open(const std::filesystem::path& folder, std::optional<int64_t> steps, int64_t max_steps,
            bool details = false);
  explicit operator bool() const { return folder_ != nullptr; }
  const std::filesystem::path& folder() const { return folder_->path(); }
  // Metrics of an earlier run, under their new name; empty: there were none.
  const std::string& kept() const { return folder_->kept(); }
  // A full disk ends nothing from here on; the screen is warned of it.
  void outlive_full_disks();

  // From here on the rows go where `settings` say, too, whose folder is this one's.
  void watch(MonitorSettings settings);

  // A line of the log and of the screen.
  void say(const std::string& line);
  // On the screen alone.
  void show(const std::string& text);
  // A whole file of the folder.
  void put(const std::string& name, const std::string& contents) const;
  void step(const StepResult& result, const StepCost& cost);
  void validation(int64_t step, const Evaluation& found);
  // A line in the log for every save; on the screen the last, and those that failed. `goes_on`: the
  // run lives with a failure.
  void saved(const SaveReport& report, bool goes_on);
  // What was told so far is on the disk.
  void sync();
  // After the last step: the screen is left, and how evenly tokens reached the experts is told.
  // `finished`: all steps of the run are done.
  void end_steps(bool finished);

 private:
  report::Output out_{stdout, "standard output"};
  report::Style style_;
  bool live_;
  Tell tell_;
  int64_t max_steps_ = 0;
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<Progress> progress_;  // nullptr: tell_ hears
  std::unique_ptr<RunMonitors> monitors_;
  LoadHistory loads_;
};

}  // namespace meshwright::train
