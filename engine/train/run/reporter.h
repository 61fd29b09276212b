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
#include <vector>

#include "engine/config/config.h"
#include "engine/train/run/attached.h"
#include "engine/train/run/metrics.h"
#include "engine/train/run/run.h"
#include "engine/train/run/saver.h"
#include "engine/train/run/speed.h"
#include "engine/train/step/logits.h"
#include "meshwright/parallel/group.h"
#include "meshwright/trainer.h"
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

  // Rank 0: from here on it tells. `steps`: as RunFolder's; `details`: as Progress's.
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

  void say(const std::string& line);   // a line of the log and of the screen
  void show(const std::string& text);  // on the screen alone
  void put(const std::string& name, const std::string& contents) const;  // a file of the folder
  void step(const StepResult& result, const StepCost& cost);
  void validation(int64_t step, const Evaluation& found, const std::vector<NamedLoss>& sets = {});
  // A line in the log for every save; on the screen the last, and those that failed. `goes_on`: the
  // run lives with a failure.
  void saved(const SaveReport& report, bool goes_on);
  void sync();  // what was told so far is on the disk
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

// "continues with optimizer.lr = 0.0005 (was 0.001), ...": what differs from the configuration that
// the folder's run had until now, but for the keys `without`; empty: nothing, or it is not known.
std::string changed_settings(const std::filesystem::path& folder, const Job& job,
                             const std::vector<std::string>& without);

// What [report] asks for. `completed`: steps that the run continues behind; nothing: a new one.
MonitorSettings monitor_settings(const Job& job, Trainer& trainer,
                                 std::optional<int64_t> completed);

// The files of a run's folder that say what was run: config.toml, config.resolved.toml, plan.json
// and env.json. Does nothing on ranks other than 0. Throws Error(output_unwritable).
void write_records(const Reporter& reporter, const RunOptions& options, const Job& job,
                   Trainer& trainer, const PredictionError& prediction_error);
// What plan.json says: the plan, what was predicted and, at a run's end, what it took.
std::string plan_text(Trainer& trainer, const PredictionError& prediction_error);

// Collective. What the ranks of a job are told at its start. The lines of rank 0, then those that
// only other ranks have, each with these ranks: "rank 3: ...". A rank of a pipeline knows things of
// its own stages that rank 0 does not.
std::vector<std::string> lines_of_all_ranks(World& world, const std::vector<std::string>& mine);

}  // namespace meshwright::train
