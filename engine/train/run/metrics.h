// What a run leaves behind: its folder, metrics.jsonl, and the lines a person watches.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/trainer.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What a run has read of a source of its mix, from its first step on, and its part of a step.
struct SourceRead {
  std::string name;
  int64_t samples = 0, tokens = 0;  // tokens: positions, with what pads them
  // Of the step; `loss` as StepResult::loss, kNone where the source had no target in it.
  int64_t targets = 0;
  double loss = kNone;
  double weight = kNone;  // of these targets together; kNone: each counts once
};

// The validation loss of a set.
struct NamedLoss {
  std::string name;
  double loss = kNone;
};

// What a step cost, beside its result, and how it lies among the steps before. kNone: not known.
struct StepCost {
  double step_ms = 0;
  int64_t memory_bytes = 0;  // peak tensor bytes of this rank
  double data_ms = 0;        // of step_ms: waiting for samples
  int64_t ranks = 1;
  double mfu = kNone;              // of the model, as a share of the ranks' peak: 0.41
  double exposed_comm_ms = kNone;  // of step_ms: this rank did nothing but communicate
  int64_t slowest_rank = -1;       // -1: not known
  double slowest_ms = kNone;       // that it worked longer than the median of the others
  // What ranks worked in the step without waiting: the median, the least and the most.
  double rank_work_ms = kNone, rank_work_ms_least = kNone, rank_work_ms_most = kNone;
  double loss_z = kNone, grad_norm_z = kNone;
  bool skipped = false;               // its update was left out (run.skip_step_above_z)
  std::vector<SourceRead> read = {};  // of a mix, with this step
  bool source_losses = false;         // they are known
};

// How evenly tokens reach the experts of a model, over many steps: a picture for people, JSON for
// programs. It stays empty for a model without experts.
class LoadHistory {
 public:
  void add(const StepResult& result);
  bool empty() const { return total_.empty(); }
  // One row per block, one column per expert (or per several experts where there are more than
  // fit): how high its load stands beside the mean. Of many blocks only the most uneven. No newline
  // at the end.
  std::string draw(const report::Style& style) const;
  // {"steps", "blocks": [{"block", "experts_per_token", "tokens": [...], "imbalance"}]}
  std::string json() const;

 private:
  std::vector<ExpertLoad> total_;
  int64_t steps_ = 0;
};

// Fields of a step's row of metrics.jsonl, empty without experts: "expert_tokens" (of each expert,
// all blocks together), "expert_imbalance" (by block) and "dropped_tokens" (assignments that tokens
// should have had and routers did not make).
std::string load_fields(const StepResult& result);
// "  experts up to 1.24x" the mean, of the most uneven block; empty without experts.
std::string load_words(const StepResult& result);

// "validation loss 4.2500", by a format of printf; "n/a" where nothing was measured.
// `sets`: "validation loss 4.2500 (web 4.0000, code 4.5000)".
std::string validation_words(double loss, const char* pattern,
                             const std::vector<NamedLoss>& sets = {});

// runs/<name>/ of rank 0. Throws Error(output_unwritable) naming path and reason.
class RunFolder {
 public:
  // Makes the folder. A run that starts afresh keeps metrics of an earlier one of the same name
  // under another name (kept()); one that continues after `steps` steps cuts them back to these and
  // appends. `tell`: hears of lines that were lost, in place of standard error.
  using Tell = std::function<void(const std::string&)>;
  explicit RunFolder(std::filesystem::path path, std::optional<int64_t> steps = std::nullopt,
                     const Tell& tell = {});
  const std::filesystem::path& path() const { return path_; }
  const std::string& kept() const { return kept_; }
  // Whole files: written beside, synced, renamed.
  void put(const std::string& name, const std::string& contents) const;
  // Both return the row, as it is in metrics.jsonl.
  std::string step(const StepResult& result, const StepCost& cost);
  // `auxiliary`: as Evaluation's; not a number: there is none.
  std::string validation(int64_t step, double loss, double auxiliary = kNone,
                         const std::vector<NamedLoss>& sets = {});
  void log(const std::string& line);
  // What was written so far is on the disk.
  void sync();
  // From here on a line that cannot be written ends nothing: it waits for room, and is written with
  // the next one that finds some. `warn` hears of the first failure of a file, and once its lines
  // are written again. What still waits at the end is told on standard error.
  void outlive_full_disks(std::function<void(const std::string&)> warn);

 private:
  // Whole lines: one that does not fit any more leaves no beginning of itself.
  class Lines {
   public:
    Lines(const std::filesystem::path& path, bool keep, Tell tell);
    ~Lines();
    Lines(const Lines&) = delete;
    Lines& operator=(const Lines&) = delete;
    void append(std::string_view line);
    void sync();
    void outlive(std::function<void(const std::string&)> warn) { warn_ = std::move(warn); }

   private:
    void missed(int reason);
    void make_again();
    void tell(const std::string& text) const;
    std::string path() const { return file_->path().string(); }
    std::unique_ptr<base::AppendFile> file_;
    std::function<void(const std::string&)> warn_;
    Tell tell_;
    std::string waiting_;  // lines that did not fit yet
    int64_t waiting_lines_ = 0, lost_lines_ = 0;
    bool failing_ = false;
  };
  std::filesystem::path path_;
  std::string kept_;
  std::optional<Lines> metrics_, log_;  // never empty once the constructor has returned
};

// One live line with a bar and the time left on a terminal; elsewhere a plain line now and then. Of
// a run of a few steps every step has a line that stays, on a terminal too, and no wider than it.
// When the output takes no more (its reader went away, its disk is full) the run goes on without:
// the run folder has it all.
class Progress {
 public:
  // `details`: plain lines say all that run.log has of a step.
  Progress(report::Output& out, const report::Style& style, bool live, int64_t steps,
           bool details = false);
  void step(const StepResult& result, const StepCost& cost);
  void validation(int64_t step, double loss, const std::vector<NamedLoss>& sets = {});
  // A line above the live one.
  void say(const std::string& line);
  // After the last step, which may come before `steps`: its line stays on the screen. Of step
  // number `steps` it does so by itself.
  void finish();
  // All that there is to say of a step, for run.log.
  static std::string line(const StepResult& result, const StepCost& cost, int64_t steps);

 private:
  std::string short_line(const std::string& left) const;
  void draw();
  void emit(const std::string& text);
  report::Output& out_;
  report::Style style_;
  bool live_, details_, drawn_ = false, gone_ = false;
  bool missing_ = false;  // no line that stays tells of the last step
  int width_;             // that a line which stays may have
  int64_t steps_;
  StepResult last_;
  StepCost cost_;
  double validation_ = -1, smooth_ms_ = 0;
  std::chrono::steady_clock::time_point said_{};
};

}  // namespace meshwright::train
