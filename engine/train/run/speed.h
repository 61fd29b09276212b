// How well the ranks use what they compute on, which rank holds up the others, and what was
// predicted of a run beside what it took.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/run/attached.h"
#include "engine/train/run/metrics.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// The rank that worked longest, and by how much that is longer than the median of the others.
struct Slowest {
  int64_t rank = -1;     // -1: not known
  double above_ms = 0;   // never below 0
  double median_ms = 0;  // of the others
};
Slowest slowest_of(const std::vector<double>& work_ms);

// Watches one rank's run for ranks that are slow for long. Not thread-safe.
class SlowRanks {
 public:
  static constexpr double kShare = 0.2;         // of the median, above it
  static constexpr int64_t kSteps = 20;         // in which it was the one
  static constexpr int64_t kForgiven = 4;       // such steps make up for one in which it was not
  static constexpr double kMilliseconds = 2e3;  // that they take: short ones are noise
  // `hosts`: by rank. `peers`: ranks are compared with those of the same number, as stages of a
  // pipeline do other work each.
  SlowRanks(std::vector<std::string> hosts, std::vector<int64_t> peers)
      : hosts_(std::move(hosts)), peers_(std::move(peers)) {}
  SlowRanks() = default;
  // Of one step. What there is to say, most often nothing: that a rank is slow, again after ten
  // times as many steps, and that it is so no longer.
  std::string add(const std::vector<double>& work_ms);

 private:
  struct Lag {
    int64_t rank = -1;
    double share = 0, median_ms = 0;
  };
  Lag lag_of(const std::vector<double>& work_ms) const;
  std::vector<std::string> hosts_;
  std::vector<int64_t> peers_;
  int64_t rank_ = -1, steps_ = 0, say_at_ = kSteps;
  int64_t credit_ = 0;                    // once it is used up, the rank is as the others
  double shares_ = 0, milliseconds_ = 0;  // sums over these steps
  bool said_ = false;
};

// Operations a second of large products in a dtype of so many bytes, on this thread's cores:
// measured, in a tenth of a second or two. Of 2 bytes: that of float32 where it is the higher one.
double measured_rate(double width);

// Model FLOPs against the peak of all ranks, and which rank holds up the others.
class Speed {
 public:
  Speed() = default;
  // Collective. What every rank can do: its device's peak, by the machine table
  // (configs/machines), or the measured rate of its cores, while the others measure theirs.
  // `seq_len`: tokens of a sample.
  Speed(const Job& job, Trainer& trainer, int64_t seq_len);
  // The fields of a step's cost that depend on the other ranks and on the model. `positions`: of
  // the step, without what pads; not given: as many as samples have.
  void fill(StepCost& cost, Trainer& trainer, std::optional<int64_t> positions = {});
  // On the rank that speaks, once a step: what is out of the ordinary. Most often nothing.
  std::vector<std::string> lines(Trainer& trainer, const StepResult& result);
  int64_t ranks_a_host() const { return ranks_a_host_; }  // at most

 private:
  double flop_a_token_ = kNone;
  double tokens_ = kNone, peak_ = kNone;  // of a step, of all ranks
  std::string exceeded_;                  // what is to be told once of a peak that was too low
  SlowRanks slow_;
  int64_t ranks_a_host_ = 1;
};

// What was predicted of a run beside what it took: seconds of a step, and bytes of rank 0.
class PredictionError {
 public:
  // Steps at the beginning of a run whose time says little: memory is taken, libraries warm up.
  static constexpr int64_t kFirst = 3;
  // Times that are kept: the newest. Their median moves no more with further ones.
  static constexpr size_t kMost = 65'536;

  PredictionError() = default;
  // Predicts a step of the trainer's rank on the machine of report.machine, else on the one whose
  // device the driver reports; without either memory alone, as the plan has it. What cannot be
  // predicted is left out: a model without sizes, memory that lies elsewhere than the tensors that
  // the run counts; of a machine that cannot be had warning() says why. Local.
  PredictionError(const Job& job, Trainer& trainer, int64_t ranks_a_host);
  const std::string& warning() const { return warning_; }  // empty: none

  // A step that was trained, with all of its cost. `quiet`: nothing was saved or evaluated beside
  // it or right before; only such steps count. `timed`: nor did a trace slow it down.
  void add(const StepCost& cost, bool quiet, bool timed);

  // What the run says at its end: "predicted beside measured: ..."; empty: there is nothing to
  // compare.
  std::string line() const;
  // Adds "predicted" to what plan.json holds and, once steps have been measured, "measured" and
  // "ratio" (measured over predicted). null: not known.
  void put_into(boost::json::object& plan) const;

 private:
  std::optional<double> seconds() const;  // of a step, the median of what counts

  std::optional<PredictedStep> predicted_;
  int64_t predicted_bytes_ = 0;  // 0: not known
  std::string warning_;
  int64_t steps_ = 0;
  std::vector<double> times_, exposed_;  // milliseconds, of the same steps
  size_t timed_ = 0;
  int64_t bytes_ = 0;  // the most of a step
};

}  // namespace meshwright::train
