// A rank's run in its parts: what the program does one after another, and an application in steps
// of its own.
#pragma once

#include <ATen/Context.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/mix.h"
#include "engine/train/run/batches.h"
#include "engine/train/run/comm_trace.h"
#include "engine/train/run/kept_files.h"
#include "engine/train/run/preemption.h"
#include "engine/train/run/reporter.h"
#include "engine/train/run/resume.h"
#include "engine/train/run/run.h"
#include "engine/train/run/same_data.h"
#include "engine/train/run/saver.h"
#include "engine/train/run/speed.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/memory.h"
#include "engine/train/step/model.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

using AfterStep = std::function<StepRequests(const StepResult& result, const StepCost& cost)>;

// One rank's run, from the configuration to the last file. All but the constructor is collective.
class Run {
 public:
  Run(const RunOptions& options, std::filesystem::path& log);
  // All of it, as the program runs it. Returns 0, or launch::kPreempted.
  int go(rendezvous::Ending& together);
  // What this rank had under way is written down, while the run is still whole, and where memory
  // ended, the error says what held it.
  void on_failure(Error& error) noexcept;
  void on_success() noexcept;

  // Its parts. open() joins the other ranks, takes the run's folder, and finds what the run
  // continues; false: all its steps are done.
  bool open(rendezvous::Ending& together);
  void prepare();
  // At most `most` steps, of those that are left.
  void train(int64_t most = std::numeric_limits<int64_t>::max(), const AfterStep& after = {});
  void save(SaveReason reason);
  void save_now();  // the same between steps, where there is something new to save
  // Over the validation data, which must be there; of sets the mean of their losses, each of which
  // `sets` hears.
  Evaluation evaluate(std::vector<NamedLoss>* sets = nullptr);
  int finish();

  Trainer& trainer() { return *trainer_; }
  const Model& model() const { return *model_; }
  const Job& job() const { return job_; }
  const std::filesystem::path& path() const { return run_path_; }
  const std::filesystem::path& config_file() const { return config_file_; }
  bool has_validation() const { return !data_.validation.empty(); }
  int64_t seq_len() const { return data_.train.config.seq_len; }

 private:
  int steps(rendezvous::Ending& together);
  void open_data();
  void refuse_another_run() const;
  void make_trainer();
  void load();
  void report_start();
  void order_mix();
  checkpoint::MixRecord mix_record(int64_t samples) const;
  std::vector<std::string> startup_notices() const;
  void report_job();
  void prepare_saving();
  void carry_language(KeptFiles& kept) const;
  std::vector<FileGroup> files_read() const;
  MadeOf made_of(const KeptFiles& kept) const;
  void carry_files(Saver::Settings& saving, bool adapters);
  void open_batches();
  MicroBatchLoss loss(Batches& batches, int64_t first, int64_t micro, const at::Tensor& hidden);
  StepResult train_step(int64_t step);
  void report_step(const StepResult& result);
  bool validate(int64_t step);
  // Of a validation, each once: as many as num_batches steps would read, or all where they are
  // fewer; and this rank's micro-batches that hold them, the last of which may have rows without
  // targets.
  int64_t validation_samples(const OpenData& data) const;
  int64_t validation_micro_batches(const OpenData& data) const;
  std::string validation_text(const OpenData& data) const;
  void answer_save_request();
  void write_traces();
  void say_prediction_error();
  void say_done(const std::string& sample);

  // Dropout draws from LibTorch's own generator, which starts anywhere.
  void seed_generator(int64_t step) {
    at::manual_seed(generator_seed(seed_, step, trainer_->plan()));
  }
  const Options& table(const char* name) const { return job_.table(name); }
  std::function<void(HostBatch&)> change_of(const OpenData& data) const;
  std::function<size_t(int64_t position)> source_of(const OpenData& data) const;
  // This rank's micro-batches of training, or of a validation.
  std::unique_ptr<Batches> batches_of(const OpenData& data, int64_t count) const;
  bool trains_on(const OpenData& data) const { return &data == &data_.train; }
  data::SampleStream stream_of(const OpenData& data) const;
  // Samples of a step, on all ranks.
  int64_t batch() const {
    return trainer_->local_batch() * trainer_->accumulation() * trainer_->data_parallel_size();
  }
  // The samples of a step follow each other, whatever the batch of the steps before was.
  int64_t samples_before(int64_t step) const {
    return (from() != nullptr ? from()->meta().samples : 0) + (step - first_step_) * batch();
  }
  checkpoint::Checkpoint* from() const { return beginning_.from.get(); }

  const RunOptions& options_;
  std::filesystem::path& log_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  Job job_;
  uint64_t seed_;
  int64_t max_steps_, first_step_ = 0;
  std::string pretrained_;
  std::filesystem::path config_file_, run_path_, checkpoints_;
  std::string config_text_;  // of config_file_, as it was read at the start; "": there is none
  std::shared_ptr<World> world_;
  std::optional<CommTrace> comm_trace_;
  bool leader_ = false;
  std::optional<MemoryMeter> memory_;
  std::unique_ptr<base::RunLock> lock_;
  ResumePoint beginning_;
  std::optional<Model> model_;
  OpenData opened_;  // to count its samples, before the ranks meet
  RunData data_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<MemoryReport> memory_report_;
  double loading_ms_ = 0;
  std::string aside_;  // where checkpoints are now that the run does not continue
  Reporter reporter_;
  std::unique_ptr<Batches> batches_;
  std::optional<data::MixOrder> mix_order_;  // of a mix
  std::string mix_changed_;                  // what to tell of one that goes on by other weights
  struct Validation {
    std::unique_ptr<Batches> batches;
    int64_t done = 0;  // micro-batches
  };
  std::vector<Validation> validations_;  // as data_.validation
  std::optional<Exports> exports_;       // the saver, and its thread, may be at it
  std::unique_ptr<Saver> saver_;
  // The lowest validation loss so far, and that of the last checkpoint; empty where none is kept.
  std::optional<checkpoint::BestLoss> best_, saved_best_;
  std::optional<Preemption> preemption_;
  std::optional<SaveRequest> save_request_;  // of the rank that leads
  Speed speed_;
  PredictionError prediction_error_;  // of the rank that leads
  bool told_no_targets_ = false;      // of the validation data
  bool no_parts_ = false;             // the model's loss is none of its targets', which was told
  bool disturbed_ = false;            // something was saved or evaluated since the last step
  StepCost cost_;                     // of the last step
  double lr_ = 0;                     // of the last step
  bool all_done_ = false;             // before anything was trained
  bool begun_ = false;                // the folder has no other run than this one
  std::shared_ptr<LostFolder> lost_;  // of an application
  bool ending_ = false;               // nothing is left to train
  bool stopped_ = false;              // by a signal, before the last step
};

}  // namespace meshwright::train
