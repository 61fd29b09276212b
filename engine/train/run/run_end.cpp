// What a run says and leaves once its last step is done.
#include <cerrno>
#include <string>

#include "engine/checkpoint/folder.h"
#include "engine/launch/exit_status.h"
#include "engine/train/run/rank_run.h"
#include "engine/train/run/run_records.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/write_sample.h"
#include "sdk/base/files/clock.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

namespace fs = std::filesystem;

int Run::finish() {
  const std::string signal_name =
      preemption_ && preemption_->asked() ? Preemption::signal() : "a signal to another rank";
  if (stopped_)
    preemption_->stay();
  else
    preemption_.reset();
  reporter_.end_steps(trainer_->next_step() == max_steps_);
  say_prediction_error();
  if (options_.trace) write_traces();
  std::string sample;
  if (options_.sample_bytes > 0 && !stopped_) {
    if (const std::string notice = whole_text_notice(*trainer_); reporter_ && !notice.empty())
      reporter_.say("notice: " + notice);
    sample = generate::write_sample(
        *trainer_, *model_->running,
        {options_.sample_prompt, options_.sample_bytes, options_.sample_temperature, seed_},
        data_.train.config.seq_len);
    reporter_.put("sample.txt", sample);
  }
  world_->everyone()->barrier();
  if (stopped_) {
    reporter_.say(signal_name + ": saved step " + std::to_string(trainer_->next_step()) + " of " +
                  std::to_string(max_steps_) + ", ending; the same command goes on from there" +
                  (options_.command.empty() ? "" : "\n  " + options_.command));
    return launch::kPreempted;
  }
  if (reporter_ && trainer_->next_step() == max_steps_ && !all_done_) say_done(sample);
  return 0;
}

// What the plan said beside what the steps took. A run that has trained does not fail over it.
void Run::say_prediction_error() {
  if (!reporter_) return;
  if (const std::string line = prediction_error_.line(); !line.empty()) reporter_.say(line);
  try {
    reporter_.put("plan.json", plan_text(*trainer_, prediction_error_));
  } catch (const Error& error) {
    reporter_.say("warning: plan.json lacks what the run took: " + error.message());
  }
}

void Run::write_traces() {
  fs::path traces = run_path_ / "trace";
  std::error_code failed;
  fs::create_directories(traces, failed);
  fs::path file = traces / ("rank_" + std::to_string(world_->rank()) + ".json");
  try {
    base::write_durably(file, world_->trace().json(world_->rank()));
  } catch (const Error& error) {
    reporter_.say("warning: " + error.message());
  }
}

// Rank 0. The export is made by it alone, from the files, for as long as it takes: the others hear
// of its end in Ending::finish().
void Run::say_done(const std::string& sample) {
  if (table("checkpoint").get_string("export") == "final")
    exports_->write(checkpoints_ / checkpoint::step_name(saver_->last_step()));
  for (const std::string& line : exports_->told()) reporter_.say(line);
  if (options_.sample_bytes > 0) {
    reporter_.show(text::format("\na sample, temperature %g:\n\n", options_.sample_temperature) +
                   report::printable(sample) + "\n");
  }
  reporter_.say("done: " + std::to_string(max_steps_) +
                (max_steps_ == 1 ? " step in " : " steps in ") +
                report::human_duration(base::ms_since(started_) / 1000) + "; results in " +
                reporter_.folder().string());
}

}  // namespace meshwright::train
