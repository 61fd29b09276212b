// A rank's whole run, as the program has it, and what it leaves when it fails. Long because its
// phases share one state.
#include "engine/train/run/rank_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string_view>
#include <utility>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/config/config.h"
#include "engine/config/sources.h"
#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/launch/spawn.h"
#include "engine/train/preflight/same_run.h"
#include "engine/train/preflight/source.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/sample.h"
#include "engine/train/step/stages.h"
#include "engine/train/step/step_monitor.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/trace_span.h"
#include "sdk/text/tokenizer/folder.h"

namespace meshwright::train {

int Run::go(rendezvous::Ending& together) {
  try {
    const int status = steps(together);
    on_success();
    return status;
  } catch (const std::exception&) {
    // What is no exception of the standard's ends the process where it was thrown, and whose code
    // that was is found out there.
    Error error = error_being_handled();
    on_failure(error);
    if (error.code() == ErrorCode::out_of_memory) throw error;
    throw;
  }
}

int Run::steps(rendezvous::Ending& together) {
  if (!open(together)) {
    if (leader_) {
      const std::string text =
          finished_text(from()->folder(), from()->meta().step, max_steps_, options_.command,
                        table("step_scheduler").find_int("epochs"));
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
    }
    return 0;
  }
  comm_trace_->watch(&Preemption::signal);
  prepare();
  preemption_.emplace(/*speaks=*/leader_);
  train();
  return finish();
}

void Run::prepare() {
  open_data();
  make_trainer();
  load();
  report_start();
  prepare_saving();
  open_batches();
}

// While the connections are there: closing them is how the others hear of the end.
void Run::on_failure(Error& error) noexcept {
  if (memory_report_ && error.code() == ErrorCode::out_of_memory)
    for (std::string& note : memory_report_->tell()) error.note(std::move(note));
  if (comm_trace_ && begun_) comm_trace_->failed(error);
}

void Run::on_success() noexcept {
  if (comm_trace_) comm_trace_->on_success();
}

int run_rank(const RunOptions& options, rendezvous::Ending& together, std::filesystem::path& log) {
  const SignalThread signals;  // before LibTorch has threads
  return Run(options, log).go(together);
}

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

int64_t Run::validation_samples(const OpenData& data) const {
  const int64_t batches = table("validation_dataset").get_int("num_batches"),
                all = data.source->samples();
  return batches <= all / batch() ? batches * batch() : all;
}

int64_t Run::validation_micro_batches(const OpenData& data) const {
  const int64_t together = trainer_->local_batch() * trainer_->data_parallel_size();
  return (validation_samples(data) + together - 1) / together;
}

// The same samples on every layout, split over the data-parallel ranks.
Evaluation Run::evaluate(std::vector<NamedLoss>* sets) {
  disturbed_ = true;
  Evaluation all;
  double losses = 0, auxiliary = 0;
  int64_t measured = 0;
  for (size_t i = 0; i < validations_.size(); ++i) {
    Validation& one = validations_[i];
    const int64_t count = validation_micro_batches(data_.validation[i]);
    const Evaluation found =
        Evaluator::run(*trainer_, count, [&](int64_t micro, const at::Tensor& hidden) {
          return loss(*one.batches, one.done, micro, hidden);
        });
    one.done += count;
    const std::string& name = data_.validation[i].config.name;
    if (sets != nullptr && !name.empty()) sets->push_back({name, found.loss});
    if (validations_.size() == 1) return found;
    if (!(found.weight > 0)) continue;
    ++measured;
    losses += found.loss;
    auxiliary += found.auxiliary;
    all.weight += found.weight;
    all.targets += found.targets;
  }
  // Each set counts alike, however large it is.
  all.loss = losses / static_cast<double>(measured);
  all.auxiliary = auxiliary / static_cast<double>(measured);
  return all;
}

// What the model makes of a micro-batch before its forward, and what is left out of a validation.
std::function<void(HostBatch&)> Run::change_of(const OpenData& data) const {
  const bool changes = model_->running->changes_batches(), training = trains_on(data);
  if (training && !changes) return {};
  return [this, training, changes, batch = batch(), first = samples_before(first_step_),
          samples = training ? 0 : validation_samples(data)](HostBatch& host) {
    host.seed = seed_;
    host.training = training;
    host.step = training ? first_step_ + (host.sample - first) / batch : trainer_->next_step();
    if (changes) model_->running->change_batch(host);
    if (!training) leave_out_from(samples, host);
  };
}

data::SampleStream Run::stream_of(const OpenData& data) const {
  if (trains_on(data) && mix_order_) return {data.mix(), *mix_order_};
  return {data.source, data::Sampler(data.source->samples(), data.config.shuffle,
                                     seed_ + (trains_on(data) ? 0 : 1))};
}

// Of training the first row lies behind those of the steps before; a validation begins anew.
std::unique_ptr<Batches> Run::batches_of(const OpenData& data, int64_t count) const {
  const bool training = trains_on(data);
  const Options& own = table(training ? "dataset" : "validation_dataset");
  const int64_t rows = trainer_->local_batch(), ranks = trainer_->data_parallel_size(),
                before = training ? samples_before(first_step_) : 0;
  return std::make_unique<Batches>(
      stream_of(data),
      BatchOrder{.first = before + trainer_->data_parallel_rank() * rows,
                 .stride = ranks * rows,
                 .count = count,
                 .again = !training},
      Batches::Settings{.rows = rows,
                        .seq_len = data.config.seq_len,
                        .device = world_->device(),
                        .workers = own.get_int("workers"),
                        .padding = padding_of(*trainer_, *model_->running, data.config,
                                              training ? trainer_->accumulation() : count),
                        .while_waiting = [world = world_] { world->check(); },
                        .change = change_of(data),
                        .source_of = source_of(data)});
}

std::function<size_t(int64_t)> Run::source_of(const OpenData& data) const {
  if (!trains_on(data) || !mix_order_) return {};
  return [order = *mix_order_](int64_t position) { return order.at(position).source; };
}

void Run::open_batches() {
  if (mix_order_) monitor_of(*trainer_).sources().open(data_.train.mix()->sources().size());
  batches_ = batches_of(data_.train, (max_steps_ - first_step_) * trainer_->accumulation());
  for (const OpenData& one : data_.validation)
    validations_.push_back({batches_of(one, validation_micro_batches(one))});
  if (table("checkpoint").get_bool("best") && beginning_.own)
    best_ = saved_best_ = from()->meta().best;
}

StepResult Run::train_step(int64_t step) {
  const bool quiet = !disturbed_ && !saver_->busy();
  disturbed_ = false;
  const auto begin = std::chrono::steady_clock::now();
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
  if (mix_order_) {
    const std::vector<data::Mix::Source>& sources = data_.train.mix()->sources();
    const SourceLosses& losses = monitor_of(*trainer_).sources();
    const bool weighed = data_.train.source->has_weights();
    const std::vector<int64_t> read = mix_order_->read_before(samples_before(result.step + 1));
    for (size_t i = 0; i < read.size(); ++i)
      cost_.read.push_back({.name = sources[i].name,
                            .samples = read[i],
                            .tokens = read[i] * seq_len(),
                            .targets = losses.found()[i].targets,
                            .loss = losses.found()[i].mean(),
                            .weight = weighed ? losses.found()[i].weight : kNone});
    if (!no_parts_ && !losses.add_up_to(result.loss)) {
      no_parts_ = true;
      reporter_.say("warning: the loss of " + trainer_->outline().architecture +
                    " says nothing of single targets: the losses of the sources of "
                    "[[dataset.mix]] are left out");
    }
    cost_.source_losses = !no_parts_;
  }
  reporter_.step(result, cost_);
  if (!reporter_) return;
  for (const std::string& line : speed_.lines(*trainer_, result)) reporter_.say(line);
}

// Whether the step's model is the best so far, where the best is kept.
bool Run::validate(int64_t step) {
  std::vector<NamedLoss> sets;
  const Evaluation found = evaluate(&sets);
  double loss = found.loss;
  if (found.targets == 0 && !std::exchange(told_no_targets_, true))
    reporter_.say(
        "warning: validation_dataset has no target among the samples that are read: there is "
        "nothing to measure, and no checkpoint is the best by it");
  reporter_.validation(step, found, sets);
  if (!table("checkpoint").get_bool("best")) return false;
  // Save or not: one rank's last bit must not decide otherwise.
  loss = gather(*world_, loss)[0];
  const bool better = std::isfinite(loss) && (!best_ || loss < best_->loss);
  if (better) best_ = {step + 1, loss};
  return better;
}

void Run::train(int64_t most, const AfterStep& after) {
  const int64_t every = table("checkpoint").get_int("every_steps"), first = trainer_->next_step();
  model_->module()->train();
  for (int64_t step = first; step < max_steps_ && step - first < most; ++step) {
    if (lost_) lost_->throw_if_told();
    const StepResult result = train_step(step);
    const bool last = step + 1 == max_steps_;
    const bool better =
        has_validation() &&
        ((step + 1) % table("validation_dataset").get_int("every_steps") == 0 || last) &&
        validate(step);
    saver_->after_step(result);
    StepRequests requests;
    if (after) {
      requests = after(result, cost_);
      const std::vector<double> any =
          largest_of_ranks(*world_, {requests.stop ? 1.0 : 0.0, requests.save ? 1.0 : 0.0});
      requests = {any[0] > 0, any[1] > 0};
    }
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

namespace fs = std::filesystem;

// In place of the model's own: two languages side by side are none.
void Run::carry_language(KeptFiles& kept) const {
  constexpr std::string_view kSource = "source/", kMore = "source/additional_chat_templates/";
  const std::vector<LanguageFile> files = language_of(data_.train.config);
  auto brings = [&](std::string_view name) {
    return std::ranges::find(files, name, &LanguageFile::name) != files.end();
  };
  const bool brings_tokenizer = std::ranges::any_of(tokenizer::kTokenizerFiles, brings);
  kept.remove([&](std::string_view name) {
    return (brings_tokenizer && name.starts_with(kSource) &&
            weights::is_of_tokenizer(name.substr(kSource.size()))) ||
           (brings("chat_template.jinja") && name.starts_with(kMore));
  });
  for (const LanguageFile& file : files) {
    const std::string name = std::string(kSource) + file.name;
    if (file.path.empty()) reporter_.put(file.name, file.text);
    file.path.empty() ? kept.add(name, file.text) : kept.read(name, file.path);
  }
}

// What is written by every save, and beside the run's other records.
void Run::carry_files(Saver::Settings& saving, bool adapters) {
  // The model was made of the file, which is read again and again on the way here.
  const bool handed = base::handed_file(config_file_) != nullptr;
  if (const std::string text = config_file_.empty() || handed ? "" : base::read_file(config_file_);
      !text.empty() && text != config_text_)
    throw Error(ErrorCode::bad_model_config,
                config_file_.string() + " was changed while the run started")
        .key("model." + model_->source.key)
        .help(
            "start the run again, and change the file once its first step is done, or not at all");
  const bool bytes = config::reads_bytes(job_.impl().config, "dataset");
  ModelFiles files = read_model_files(from(), config_file_, config_text_, pretrained_, bytes);
  saving.kept = std::move(files.files);
  saving.export_dtypes = std::move(files.export_dtypes);
  for (const std::string& notice : files.notices) reporter_.say("notice: " + notice);
  carry_language(saving.kept);
  saving.kept.add(config::kResolvedFile, before::resolved_toml(job_.impl()));
  if (from() != nullptr && before::begins_from_the_same(*from(), job_.impl()))
    saving.facts.pretrained = from()->meta().pretrained;
  else if (from() == nullptr && !pretrained_.empty() && !adapters)
    saving.facts.pretrained = checkpoint::fingerprint_of(weights::WeightFolder(pretrained_));
  if (from() == nullptr && options_.attempts >= 0)
    hold_to_first_attempt(options_.attempts, made_of(saving.kept));
  auto record = [&](std::string_view name, const std::string& text) {
    reporter_.put(std::string(name), text);
    saving.kept.add(std::string(name), text);
  };
  if (const std::string text = plan::model_settings(job_.impl()); !text.empty())
    record(generate::kModelSettings, text);
  if (const std::string& text = trainer_->plan().adapter_config; !text.empty())
    record(checkpoint::kAdapterConfig, text);
}

// What it reads that a later attempt would read again.
MadeOf Run::made_of(const KeptFiles& kept) const {
  MadeOf out;
  for (const KeptFile& file : kept.all())
    out.emplace_back(file.record.name,
                     checkpoint::to_hex(checkpoint::checksum(std::string_view(file.bytes))));
  for (const FileGroup& group : files_read())
    out.emplace_back("the " + group.what + " of " + group.key, digest_of(group));
  for (const Fingerprint& data : data_.fingerprints)
    out.emplace_back("the " + data.what, data.value);
  return out;
}

void Run::prepare_saving() {
  const Options& checkpoint_table = table("checkpoint");
  Saver::Settings saving;
  saving.folder = checkpoints_;
  saving.keep = {checkpoint_table.get_int("keep"), checkpoint_table.get_int("keep_every")};
  saving.background = checkpoint_table.get_bool("async");
  saving.facts.architecture = model_->outline.architecture;
  saving.facts.seq_len = data_.train.config.seq_len;
  saving.facts.data_fingerprint = checkpoint::to_hex(data_.fingerprint.whole);
  saving.facts.shuffle = table("dataset").get_bool("shuffle");
  if (mix_order_) saving.mix = [this](int64_t samples) { return mix_record(samples); };
  saving.facts.seed = seed_;
  saving.facts.max_steps = max_steps_;
  const plan::Adapters adapters = plan::adapters_in(job_.impl().config, trainer_->outline());
  // All ranks read what they have to, or none goes on.
  agree_or_throw(*world_, [&] {
    if (leader_) carry_files(saving, adapters.any());
    if (adapters.any()) leave_to_base(saving, from(), pretrained_, trainer_->outline());
  });
  if (from() != nullptr) from()->release();
  exports_.emplace(job_, run_path_);
  if (checkpoint_table.get_string("export") == "every")
    saving.published = [this](const fs::path& path) { exports_->write(path); };
  // A failed save may be lived with while there is something to train on, not at the end.
  ending_ = first_step_ == max_steps_;
  const bool on = checkpoint_table.get_string("on_failure") == "continue";
  saving.done = [this, on](const SaveReport& report) {
    // Replicas that differ are no matter of the disk: what such a run trains is worth nothing.
    const bool goes_on =
        on && !ending_ && !(report.error && report.error->code() == ErrorCode::replicas_differ);
    reporter_.saved(report, goes_on);
    (report.error ? best_ : saved_best_) = report.error ? saved_best_ : report.best;
    if (report.error && !goes_on) throw unsaved(*report.error, ending_, checkpoints_);
  };
  saver_ = std::make_unique<Saver>(*trainer_, std::move(saving));
}

checkpoint::MixRecord Run::mix_record(int64_t samples) const {
  const data::MixStage& stage = mix_order_->stage_at(samples);
  checkpoint::MixRecord out{stage.first, {}};
  const std::vector<data::Mix::Source>& sources = data_.train.mix()->sources();
  for (size_t i = 0; i < sources.size(); ++i)
    out.sources.push_back({sources[i].name, checkpoint::to_hex(sources[i].fingerprint),
                           stage.shares[i], stage.read[i]});
  return out;
}

void Run::answer_save_request() {
  if (!save_request_) return;
  save_request_->grant([this](const std::string& text) { reporter_.say(text); });
  reporter_.say("notice: saves after step " + std::to_string(trainer_->next_step()) +
                ", as it was asked to");
}

void Run::save_now() {
  saver_->finish();
  if (saver_->last_step() != trainer_->next_step()) save(SaveReason::asked);
  saver_->finish();
}

void Run::save(SaveReason reason) {
  disturbed_ = true;
  reporter_.sync();
  saver_->save(samples_before(trainer_->next_step()), lr_, best_, reason);
}

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
  const fs::path traces = run_path_ / "trace";
  std::error_code failed;
  fs::create_directories(traces, failed);
  try {
    base::write_durably(traces / ("rank_" + std::to_string(world_->rank()) + ".json"),
                        world_->trace().json(world_->rank()));
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
  if (options_.sample_bytes > 0)
    reporter_.show(text::format("\na sample, temperature %g:\n\n", options_.sample_temperature) +
                   report::printable(sample) + "\n");
  std::string steps = std::to_string(max_steps_) + (max_steps_ == 1 ? " step" : " steps");
  if (const int64_t mine = max_steps_ - first_step_; first_step_ > 0) {
    const std::string last = std::to_string(max_steps_);
    steps += mine == 0   ? ", all of them before,"
             : mine == 1 ? ", the last one of them (" + last + ")"
                         : ", the last " + std::to_string(mine) + " of them (" +
                               std::to_string(first_step_ + 1) + " to " + last + ")";
  }
  reporter_.say("done: " + steps + " in " +
                report::human_duration(base::ms_since(started_) / 1000) + "; results in " +
                reporter_.folder().string());
}

namespace {

class Running : public Session {
 public:
  explicit Running(RunOptions options) : options_(std::move(options)) {
    try {
      run_ = std::make_unique<Run>(options_, log_);
      run_->open(ending_);
      run_->prepare();
    } catch (...) {
      give_up();
    }
    const Trainer& trainer = run_->trainer();
    rank_ = trainer.world().rank();
    world_size_ = trainer.world().size();
    max_steps_ = trainer.max_steps();
    next_step_ = trainer.next_step();
    folder_ = run_->path();
  }

  void train(int64_t most, const std::function<StepRequests(const SessionStep&)>& after) override {
    together([&](Run& run) {
      // Always asked of all: some ranks may have nothing to say.
      run.train(most, [&](const StepResult& result, const StepCost& cost) {
        next_step_ = result.step + 1;
        if (!after) return StepRequests{};
        return after({result.step, result.loss, result.grad_norm, result.lr, result.count,
                      cost.step_ms, cost.memory_bytes});
      });
    });
  }

  void save() override {
    together([](Run& run) { run.save_now(); });
  }

  double evaluate() override {
    if (!there().has_validation())
      throw Error(ErrorCode::missing_key, "the job has no validation data")
          .key("validation_dataset.path")
          .help("set validation_dataset.path");
    double loss = 0;
    together([&](Run& run) { loss = run.evaluate().loss; });
    return loss;
  }

  void generate(const generate::Request& request, const OnToken& token) override {
    Run& here = there();
    if (!request.sets.empty())
      throw Error(ErrorCode::usage, "a run goes on with a text under its own configuration")
          .help("leave out the overrides");
    const generate::Source source =
        generate::Source::of_model(here.config_file(), here.model().outline.vocab_size,
                                   config::reads_bytes(here.job().impl().config, "dataset"));
    const std::vector<int64_t> prompt = source.prompt(request), stops = source.stops(request);
    check_generates(here.model());
    generate::check_sampling({request.temperature, request.top_k, request.top_p, request.min_p,
                              request.repetition_penalty});
    together([&](Run& run) {
      RunningModel& net = *run.model().running;
      const int64_t context = std::min(run.seq_len(), net.max_positions());
      generate::TextPieces pieces(source, options_.tell, token);
      generate::continue_prompt(run.trainer(), net, prompt, request, stops, context,
                                pieces.listener());
      pieces.finish();
    });
  }

  void finish() override {
    together([&](Run& run) {
      run.finish();
      run.on_success();
      ending_.finish();
    });
    run_.reset();
    why_over_ = "has finished";
  }

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  int64_t next_step() const override { return next_step_; }
  int64_t max_steps() const override { return max_steps_; }
  const fs::path& folder() const override { return folder_; }

 private:
  Run& there() {
    if (run_ == nullptr)
      throw Error(ErrorCode::usage,
                  "the run " + why_over_ + ": nothing can be asked of it any more")
          .help("open the job again: it goes on from its newest checkpoint");
    return *run_;
  }

  template <class Work>
  void together(const Work& work) {
    Run& run = there();
    try {
      work(run);
    } catch (...) {
      give_up();
    }
  }

  // The connections are closed before the others hear why.
  [[noreturn]] void give_up() {
    Error error = error_being_handled();
    if (run_) run_->on_failure(error);
    run_.reset();
    why_over_ = "has failed";
    if (!log_.empty()) base::append_line(log_, report::format_error({}, error));
    ending_.tell(error);
    throw error;
  }

  const RunOptions options_;
  rendezvous::Ending ending_;
  fs::path log_;
  std::unique_ptr<Run> run_;  // nullptr: it is over
  std::string why_over_;
  int64_t rank_ = 0, world_size_ = 1, next_step_ = 0, max_steps_ = 0;
  fs::path folder_;
};

}  // namespace

std::unique_ptr<Session> open_session(const RunOptions& options) {
  return std::make_unique<Running>(options);
}

}  // namespace meshwright::train
