// The steps of a run, and the batches that they read.
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/run/rank_run.h"
#include "engine/train/step/gather.h"
#include "engine/train/step/largest_of_ranks.h"
#include "engine/train/step/logits.h"
#include "engine/train/step/stages.h"
#include "meshwright/parallel/trace_span.h"
#include "sdk/base/files/clock.h"

namespace meshwright::train {

using Clock = std::chrono::steady_clock;

MicroBatchLoss Run::loss(Batches& batches, int64_t first, int64_t micro, const at::Tensor& hidden) {
  // Stages of a pipeline ask for the micro-batches of a step again, and not in order.
  batches.forget_before(trainer_->stages() != nullptr ? first : first + micro);
  const MicroBatch* batch = nullptr;
  {
    TraceSpan span(world_->trace(), "data");
    batch = &batches.at(first + micro);
  }
  return loss_of(*trainer_, *model_->running, *batch, hidden);
}

int64_t Run::validation_samples() const {
  const int64_t batch = trainer_->local_batch() * trainer_->accumulation() *
                        trainer_->data_parallel_size(),
                batches = table("validation_dataset").get_int("num_batches"),
                all = data_.validation.source->samples();
  return batches <= all / batch ? batches * batch : all;
}

int64_t Run::validation_micro_batches() const {
  const int64_t together = trainer_->local_batch() * trainer_->data_parallel_size();
  return (validation_samples() + together - 1) / together;
}

// The same samples on every layout, split over the data-parallel ranks.
Evaluation Run::evaluate() {
  disturbed_ = true;
  const int64_t count = validation_micro_batches();
  const Evaluation out =
      Evaluator::run(*trainer_, count, [&](int64_t micro, const at::Tensor& hidden) {
        return loss(*validation_batches_, validated_, micro, hidden);
      });
  validated_ += count;
  return out;
}

// What the model makes of a micro-batch before its forward, and what is left out of a validation.
std::function<void(HostBatch&)> Run::change_of(bool training) const {
  const bool changes = model_->running->changes_batches();
  if (training && !changes) return {};
  const int64_t batch =
      trainer_->local_batch() * trainer_->accumulation() * trainer_->data_parallel_size();
  return [this, training, changes, batch, first = samples_before(first_step_),
          samples = training ? 0 : validation_samples()](HostBatch& host) {
    host.seed = seed_;
    host.training = training;
    host.step = training ? first_step_ + (host.sample - first) / batch : trainer_->next_step();
    if (changes) model_->running->change_batch(host);
    if (!training) leave_out_from(samples, host);
  };
}

std::unique_ptr<Batches> Run::batches_of(const OpenData& data, const Options& own, uint64_t seed,
                                         int64_t samples, int64_t count, bool again) const {
  const int64_t rows = trainer_->local_batch(), ranks = trainer_->data_parallel_size();
  return std::make_unique<Batches>(
      data.source, data::Sampler(data.source->samples(), own.get_bool("shuffle"), seed),
      BatchOrder{.first = samples + trainer_->data_parallel_rank() * rows,
                 .stride = ranks * rows,
                 .count = count,
                 .again = again},
      Batches::Settings{.rows = rows,
                        .seq_len = data.config.seq_len,
                        .device = world_->device(),
                        .workers = own.get_int("workers"),
                        .padding = padding_of(*trainer_, *model_->running, data.config,
                                              again ? count : trainer_->accumulation()),
                        .while_waiting = [world = world_] { world->check(); },
                        .change = change_of(/*training=*/!again)});
}

void Run::open_batches() {
  const int64_t steps = max_steps_ - first_step_, each = trainer_->accumulation();
  batches_ = batches_of(data_.train, table("dataset"), seed_, samples_before(first_step_),
                        steps * each, /*again=*/false);
  if (data_.validation.source) {
    const Options& own = table("validation_dataset");
    validation_batches_ =
        batches_of(data_.validation, own, seed_ + 1, 0, validation_micro_batches(), /*again=*/true);
  }
  if (table("checkpoint").get_bool("best") && beginning_.own)
    best_ = saved_best_ = from()->meta().best;
}

StepResult Run::train_step(int64_t step) {
  const bool quiet = !disturbed_ && !saver_->busy();
  disturbed_ = false;
  Clock::time_point begin = Clock::now();
  memory_->reset_peak();
  saver_->before_step();
  if (save_request_ && save_request_->asked()) trainer_->vote(RankSignal::save);
  const int64_t first = (step - first_step_) * trainer_->accumulation();
  if (Stages* stages = trainer_->stages(); stages != nullptr) {
    TraceSpan span(world_->trace(), "data");
    batches_->forget_before(first);
    stages->set_length(batches_->at(first).length());
  }
  StepResult result = trainer_->step([&](int64_t micro, const at::Tensor& hidden) {
    if (preemption_ && preemption_->asked()) trainer_->vote(RankSignal::stop);
    return loss(*batches_, first, micro, hidden);
  });
  cost_ = {base::ms_since(begin), memory_->peak(), batches_->take_waited_ms()};
  report_step(result);
  if (leader_) prediction_error_.add(cost_, quiet, !options_.trace);
  lr_ = result.lr;
  return result;
}

void Run::report_step(const StepResult& result) {
  speed_.fill(cost_, *trainer_, result.positions);
  reporter_.step(result, cost_);
  if (!reporter_) return;
  for (const std::string& line : speed_.lines(*trainer_, result)) reporter_.say(line);
}

// Whether the step's model is the best so far, where the best is kept.
bool Run::validate(int64_t step) {
  const Evaluation found = evaluate();
  double loss = found.loss;
  if (found.targets == 0 && !std::exchange(told_no_targets_, true))
    reporter_.say(
        "warning: validation_dataset has no target among the samples that are read: there is "
        "nothing to measure, and no checkpoint is the best by it");
  reporter_.validation(step, found);
  if (!table("checkpoint").get_bool("best")) return false;
  // Save or not: one rank's last bit must not decide otherwise.
  loss = gather(*world_, loss)[0];
  const bool better = std::isfinite(loss) && (!best_ || loss < best_->loss);
  if (better) best_ = {step + 1, loss};
  return better;
}

StepRequests Run::requests_of_all(StepRequests mine) {
  const std::vector<double> any =
      largest_of_ranks(*world_, {mine.stop ? 1.0 : 0.0, mine.save ? 1.0 : 0.0});
  return {any[0] > 0, any[1] > 0};
}

void Run::train(int64_t most, const AfterStep& after) {
  const int64_t every = table("checkpoint").get_int("every_steps"), first = trainer_->next_step();
  model_->module()->train();
  for (int64_t step = first; step < max_steps_ && step - first < most; ++step) {
    if (lost_) lost_->throw_if_told();
    const StepResult result = train_step(step);
    const bool last = step + 1 == max_steps_;
    const bool better =
        data_.validation.source &&
        ((step + 1) % table("validation_dataset").get_int("every_steps") == 0 || last) &&
        validate(step);
    saver_->after_step(result);
    const StepRequests requests = after ? requests_of_all(after(result, cost_)) : StepRequests{};
    // All ranks end after the same step, whichever of them was told to. After the last one the run
    // is about to end anyway.
    stopped_ = result.votes(RankSignal::stop) > 0 && !last;
    ending_ = last || stopped_;
    const bool due = every > 0 && (step + 1) % every == 0;
    const bool asked = result.votes(RankSignal::save) > 0;
    if (asked) answer_save_request();
    if (ending_ || better || requests.save || asked || due)
      save(stopped_ ? SaveReason::stop
           : last   ? SaveReason::end
           : due    ? SaveReason::scheduled
           : better ? SaveReason::best
                    : SaveReason::asked);
    if (stopped_ || requests.stop) break;
  }
  if (first_step_ == max_steps_ && saver_->last_step() < 0 && !all_done_)
    save(SaveReason::end);  // nothing was trained, but what was read is kept
  saver_->finish();
}

}  // namespace meshwright::train
