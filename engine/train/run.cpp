#include "engine/train/rank_run.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/generate/running/write_sample.h"
#include "engine/generate/source.h"
#include "engine/launch/exit_status.h"
#include "engine/plan/adapter_folder.h"
#include "engine/plan/adapters.h"
#include "engine/plan/plan.h"
#include "engine/report/progress.h"
#include "engine/report/report.h"
#include "engine/train/lines_of_ranks.h"
#include "engine/train/load_checkpoint.h"
#include "engine/train/run_records.h"
#include "engine/train/shared_folder.h"
#include "engine/trainer/join_world.h"
#include "engine/trainer/load_weights.h"
#include "engine/trainer/logits.h"
#include "engine/trainer/stages.h"
#include "engine/weights/auxiliary_files.h"
#include "engine/weights/export.h"
#include "engine/weights/safetensors.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/trace_span.h"
#include "sdk/base/even_tokens.h"
#include "sdk/base/plugin_at_work.h"
#include "sdk/files/clock.h"
#include "sdk/files/read_file.h"

namespace meshwright::train {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

Run::Run(const RunOptions& options, fs::path& log)
    : options_(options),
      log_(log),
      job_(options.file.empty() ? Job::from_text(options.text, options.sets)
                                : Job::from_file(options.file, options.sets)),
      seed_(static_cast<uint64_t>(table("run").get_int("seed"))),
      max_steps_(table("step_scheduler").find_int("max_steps").value_or(0)),
      pretrained_(table("model").get_string("pretrained")),
      reporter_({options.colour, options.unicode, options.width}, options.live, options.tell) {
  if (options.tell) lost_ = std::make_shared<LostFolder>();
  Diagnostics missing;
  plan::check_trainable(job_.impl(), missing);
  missing.throw_if_any();
  set_threads(job_);
  keep_freed_memory();
  config_file_ = config::model_config_file(table("model"));
  // A plugin's family need not have one in its folders.
  if (job_.impl().model && !pretrained_.empty() && !fs::exists(config_file_)) config_file_.clear();
  run_path_ = fs::path(table("run").get_string("dir")) / table("run").get_string("name");
  checkpoints_ = run_path_ / "checkpoints";
}

namespace {

// Ranks that count epochs of other data would end at other steps.
std::string counted_samples(const plan::Job& job) {
  return job.samples ? std::to_string(*job.samples) : "any number";
}

std::string adapter_folder(const Options& lora) {
  return lora.get_int("r") > 0 ? lora.get_string("adapter") : "";
}

}  // namespace

bool Run::open(rendezvous::Ending& together) {
  model_.emplace(make_model(job_));
  prepare_run_data(job_, model_->outline.vocab_size, seed_);
  data::count_samples(job_.impl());
  const std::string hash =
      config_file_.empty()
          ? "none"
          : std::to_string(std::hash<std::string>()(base::read_file(config_file_)));
  world_ = join_world(job_,
                      {{"config.json of the model, whose hash is", hash},
                       {"the model's settings", plan::model_settings(job_.impl())},
                       {"samples of [dataset], of which there are", counted_samples(job_.impl())}},
                      &together);
  if (job_.impl().samples)
    max_steps_ =
        plan::make_plan(job_.impl(), {.world_size = world_->size(), .rank = world_->rank()})
            .max_steps.value_or(0);
  leader_ = world_->rank() == 0;
  detail::this_is_rank(world_->rank());
  world_->trace().enabled = options_.trace;
  memory_.emplace(world_->device());
  lock_ = lock_run(*world_, run_path_, options_.tell, lost_);
  if (lock_) log_ = run_path_ / "run.log";
  if (leader_) CommTrace::clear(run_path_);
  check_shared(*world_, run_path_);
  comm_trace_.emplace(*world_, run_path_);
  memory_report_.emplace(*memory_, *world_, run_path_);
  beginning_ = begin_run(job_, *world_, checkpoints_);
  if (from() == nullptr && !adapter_folder(table("lora")).empty())
    agree_or_throw(*world_, outcome_of([&] {
      Diagnostics found;
      plan::check_adapter_folder(job_.impl(), found);
      found.throw_if_any();
      return std::string();
    }));
  all_done_ = from() != nullptr && from()->meta().step >= max_steps_;
  if (!all_done_) return true;
  if (job_.impl().samples) {  // epochs of other data may only seem to be over
    open_data();
    agree_or_throw(*world_, outcome_of([&] {
      check_data(*from(), job_, data_.fingerprint, data_.train.config.seq_len);
      return std::string();
    }));
  }
  if (beginning_.own)
    make_way(beginning_, *world_, checkpoints_);  // tidies what an interrupted save left
  return false;
}

// All ranks must have the data alike.
void Run::open_data() {
  check_sample(options_, model_->outline.vocab_size);
  if (options_.sample_bytes > 0) check_generates(*model_);
  data_ = open_run_data(job_, model_->outline.vocab_size, seed_);
  for (const OpenData* data : {&data_.train, &data_.validation})
    if (data->source && data->source->has_documents())
      check_documents_reach(*model_->module(), model_->outline.architecture, data->config);
  std::vector<FileGroup> read_by_all = data_.files;
  if ((from() == nullptr || from()->meta().base) && !pretrained_.empty())
    read_by_all.push_back({"model.pretrained", "files of the weights", weight_files(pretrained_)});
  if (const std::string adapter = adapter_folder(table("lora"));
      from() == nullptr && !adapter.empty())
    read_by_all.push_back({"lora.adapter", "files of the adapters", weight_files(adapter)});
  if (std::string said =
          check_same_data(*world_, read_by_all, table("dataset").get_string("verify") == "whole");
      !said.empty())
    world_->notice(said);
  check_same_fingerprints(*world_, data_.fingerprints);
}

void Run::make_trainer() {
  const SharedOptions& shared = job_.impl().config.shared;
  const int64_t rows = shared.sizes.pp > 1 ? shared.pipeline.microbatch_size
                                           : table("step_scheduler").get_int("local_batch_size"),
                tokens = rows * data_.train.config.seq_len;
  job_.impl().fills_adapters = true;
  trainer_ = std::make_unique<Trainer>(job_, world_, model_->module(), model_->outline, tokens);
  memory_report_->model_is(*trainer_, *model_->module());
  // Batches, of training and validation, are of one size unless what pads them is left out, and a
  // text is the same on every rank. A plugin's model may bring some of the tokens only.
  auto cut = [&](const OpenData& data) {
    return data.source && !data.source->has_documents() &&
           padding_of(*trainer_, *model_->running, data.config, 1).multiple > 0;
  };
  if (model_->source.plugin == nullptr && !cut(data_.train) && !cut(data_.validation))
    for (auto& [name, block] : find_moe_blocks(*model_->module()))
      if (auto* dispatcher = dynamic_cast<EvenTokens*>(&block->dispatcher()))
        dispatcher->promise_even_tokens();
  seed_generator(0);
}

// What the run continues, or the weights it starts from. Nothing is left then that refuses the run.
void Run::load() {
  const Clock::time_point begin = Clock::now();
  if (from() != nullptr) {
    // All ranks continue, or none.
    agree_or_throw(*world_, outcome_of([&] {
      check_data(*from(), job_, data_.fingerprint, data_.train.config.seq_len);
      check_base(*from(), pretrained_);
      check_scale(*from(), table("lora"), trainer_->plan().adapter_config);
      return std::string();
    }));
    try {
      if (!load_checkpoint(*trainer_, *from())) seed_generator(from()->meta().step);
    } catch (const Error& error) {
      throw with_way_on(error, from()->folder());
    }
  } else {
    load_weights(
        *trainer_, pretrained_, [&](const ParameterOutline& p) { return model_->initial_value(p); },
        seed_, adapter_folder(table("lora")));
    if (std::string unused =
            pretrained_.empty() || !leader_ ? "" : unused_tensors(pretrained_, trainer_->outline());
        !unused.empty())
      world_->notice(unused);
  }
  loading_ms_ = base::ms_since(begin);
  aside_ = make_way(beginning_, *world_, checkpoints_);
  first_step_ = trainer_->next_step();
}

void Run::report_start() {
  const std::vector<std::string> told = lines_of_all_ranks(*world_, told_here());
  speed_ = Speed(job_, *trainer_, data_.train.config.seq_len);
  if (!leader_) return;
  save_wish_.emplace(run_path_);
  foretold_ = Foretold(job_, *trainer_, speed_.ranks_a_host());
  reporter_.open(run_path_, beginning_.own ? std::optional(from()->meta().step) : std::nullopt,
                 trainer_->max_steps());
  // A checkpoint's run is the folder around the checkpoints.
  std::string changes;
  if (beginning_.own)
    changes = changed_settings(run_path_, job_, {});
  else if (from() != nullptr)
    changes = changed_settings(fs::absolute(from()->folder()).parent_path().parent_path(), job_,
                               {"run.name", "run.dir", "checkpoint.resume"});
  write_records(reporter_, options_, job_, *trainer_, foretold_);
  if (table("checkpoint").get_string("on_failure") == "continue") reporter_.outlive_full_disks();
  report_job();
  if (!changes.empty()) reporter_.say(changes);
  for (const std::string& line : told) reporter_.say(line);
  if (!foretold_.warning().empty()) reporter_.say("warning: " + foretold_.warning());
  reporter_.watch(monitor_settings(job_, *trainer_,
                                   beginning_.own ? std::optional(first_step_) : std::nullopt));
}

// What this rank was told at the start: of joining, of the plan, of its own part of the model.
std::vector<std::string> Run::told_here() const {
  const plan::JobPlan& plan = trainer_->plan();
  std::vector<std::string> notices = world_->notices();  // those of the sharding plan are in both
  for (const std::string& notice : plan.notices)
    if (std::find(notices.begin(), notices.end(), notice) == notices.end())
      notices.push_back(notice);
  std::vector<std::string> out;
  for (const std::string& notice : notices) out.push_back("notice: " + notice);
  for (const std::string& warning : plan.warnings) out.push_back("warning: " + warning);
  return out;
}

void Run::report_job() {
  int64_t parameters = 0, trained = 0;
  for (const ParameterOutline& p : trainer_->outline().parameters) {
    parameters += element_count(p.shape);
    if (p.trainable) trained += element_count(p.shape);
  }
  const plan::JobPlan& plan = trainer_->plan();
  const std::string& strategy = plan.strategy.info->name;
  if (!reporter_.kept().empty())
    reporter_.say("an earlier run of this name left metrics; they are now " + reporter_.kept());
  if (!aside_.empty())
    reporter_.say("checkpoints that this run does not continue are now in " + aside_);
  if (from() != nullptr) reporter_.say(resume_text(*from(), *world_, strategy, loading_ms_));
  reporter_.say(
      strategy + " on " + report::counted(world_->size(), "rank", "ranks") + ": " +
      model_->outline.architecture + ", " + report::human_count(parameters) + " parameters" +
      (trained < parameters ? ", of which " + report::human_count(trained) + " train" : "") +
      "; batch " + std::to_string(trainer_->local_batch()) + " x " +
      std::to_string(trainer_->accumulation()) + " x " +
      std::to_string(trainer_->data_parallel_size()) + " samples of " +
      std::to_string(data_.train.config.seq_len) + " tokens");
  if (const Stages* stages = trainer_->stages()) reporter_.say("pipeline: " + stages->describe());
  reporter_.say("data: " + data_.train.source->describe() + ", " +
                report::human_count(data_.train.source->samples()) + " samples");
  if (data_.validation.source) reporter_.say("validation: " + data_.validation.source->describe());
  for (const OpenData* data : {&data_.train, &data_.validation})
    if (data->source)
      for (const std::string& line : data->source->report())
        reporter_.say(data->config.table + ": " + line);
}

// In place of the model's own: two languages side by side are none.
void Run::carry_language(Saver::Settings& saving) const {
  constexpr std::string_view kSource = "source/", kMore = "source/additional_chat_templates/";
  const std::vector<LanguageFile> files = language_of(data_.train.config);
  auto brings = [&](std::string_view name) {
    return std::any_of(files.begin(), files.end(),
                       [name](const LanguageFile& file) { return file.name == name; });
  };
  std::erase_if(saving.carried, [&](const auto& carried) {
    const std::string_view name = carried.first;
    return (brings("tokenizer.json") && name.starts_with(kSource) &&
            weights::is_of_tokenizer(name.substr(kSource.size()))) ||
           (brings("chat_template.jinja") && name.starts_with(kMore));
  });
  for (const LanguageFile& file : files) {
    const std::string name = std::string(kSource) + file.name;
    std::erase_if(saving.carried, [&](const auto& carried) { return carried.first == name; });
    if (file.path.empty() && leader_) reporter_.put(file.name, file.text);
    saving.carried.emplace_back(name,
                                file.path.empty() ? run_path_ / file.name : fs::path(file.path));
  }
}

void Run::prepare_saving() {
  const Options& checkpoint_table = table("checkpoint");
  Saver::Settings saving;
  saving.folder = checkpoints_;
  saving.keep = {checkpoint_table.get_int("keep"), checkpoint_table.get_int("keep_every")};
  saving.background = checkpoint_table.get_bool("async");
  saving.facts.architecture = model_->outline.architecture;
  saving.facts.seq_len = data_.train.config.seq_len;
  saving.facts.data_fingerprint = data_.fingerprint;
  saving.facts.shuffle = table("dataset").get_bool("shuffle");
  saving.facts.seed = seed_;
  saving.facts.max_steps = max_steps_;
  for (const std::string& notice :
       carry_along(saving, from(), config_file_, pretrained_, data::reads_bytes(table("dataset"))))
    reporter_.say("notice: " + notice);
  carry_language(saving);
  if (const std::string text = plan::model_settings(job_.impl()); leader_ && !text.empty()) {
    reporter_.put(std::string(generate::kModelSettings), text);
    saving.carried.emplace_back(generate::kModelSettings,
                                run_path_ / std::string(generate::kModelSettings));
  }
  if (const plan::Adapters adapters = plan::adapters_in(job_.impl().config, trainer_->outline());
      adapters.any()) {
    // All ranks read the folder, or none goes on.
    agree_or_throw(*world_, outcome_of([&] {
      leave_to_base(saving, from(), pretrained_, trainer_->outline());
      return std::string();
    }));
    if (leader_) {
      const std::string name(checkpoint::kAdapterConfig);
      reporter_.put(name, trainer_->plan().adapter_config);
      saving.carried.emplace_back(name, run_path_ / name);
    }
  }
  if (checkpoint_table.get_string("export") == "every")
    saving.published = [this](const fs::path& path) { write_exports(path); };
  // A failed save may be lived with while there is something to train on, not at the end.
  ending_ = first_step_ == max_steps_;
  saving.done = [this, on = checkpoint_table.get_string("on_failure") ==
                            "continue"](const SaveReport& report) {
    // Replicas that differ are no matter of the disk: what such a run trains is worth nothing.
    bool goes_on =
        on && !ending_ && !(report.error && report.error->code() == ErrorCode::replicas_differ);
    reporter_.saved(report, goes_on);
    (report.error ? best_ : saved_best_) = report.error ? saved_best_ : report.best;
    if (report.error && !goes_on) throw unsaved(*report.error, ending_, checkpoints_);
  };
  saver_ = std::make_unique<Saver>(*trainer_, std::move(saving));
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

// As many samples as num_batches training steps would read: the same on every layout, split over
// the data-parallel ranks.
double Run::evaluate() {
  disturbed_ = true;
  const int64_t count =
      table("validation_dataset").get_int("num_batches") * trainer_->accumulation();
  const double out = trainer_->evaluate(count, [&](int64_t micro, const at::Tensor& hidden) {
    return loss(*validation_batches_, validated_, micro, hidden);
  });
  validated_ += count;
  return out;
}

// What the model makes of a micro-batch before its forward.
std::function<void(HostBatch&)> Run::change_of(bool training) const {
  if (!model_->running->changes_batches()) return {};
  const int64_t batch =
      trainer_->local_batch() * trainer_->accumulation() * trainer_->data_parallel_size();
  return [this, training, batch, first = samples_before(first_step_)](HostBatch& host) {
    host.seed = seed_;
    host.training = training;
    host.step = training ? first_step_ + (host.sample - first) / batch : trainer_->next_step();
    model_->running->change_batch(host);
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
    validation_batches_ = batches_of(data_.validation, own, seed_ + 1, 0,
                                     own.get_int("num_batches") * each, /*again=*/true);
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
  if (save_wish_ && save_wish_->asked()) trainer_->vote(RankSignal::save);
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
  if (leader_) foretold_.add(cost_, quiet, !options_.trace);
  report_step(result);
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
  double loss = evaluate();
  reporter_.validation(step, loss);
  if (!table("checkpoint").get_bool("best")) return false;
  // Save or not: one rank's last bit must not decide otherwise.
  loss = std::bit_cast<double>(int64_t{std::stoll(agree_or_throw(
      *world_, outcome_of([&] { return std::to_string(std::bit_cast<int64_t>(loss)); }))[0])});
  const bool better = std::isfinite(loss) && (!best_ || loss < best_->loss);
  if (better) best_ = {step + 1, loss};
  return better;
}

Wishes Run::wishes_of_all(Wishes mine) {
  if (world_->size() == 1) return mine;
  at::Tensor any =
      at::tensor({mine.stop ? 1 : 0, mine.save ? 1 : 0}, at::kLong).to(world_->device());
  world_->everyone()->all_reduce(any, ReduceOp::max, /*control=*/true).wait();
  world_->check();
  any = any.cpu();
  return {any[0].item<int64_t>() != 0, any[1].item<int64_t>() != 0};
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
    const Wishes wishes = after ? wishes_of_all(after(result, cost_)) : Wishes{};
    // All ranks end after the same step, whichever of them was told to. After the last one the run
    // is about to end anyway.
    stopped_ = result.votes(RankSignal::stop) > 0 && !last;
    ending_ = last || stopped_;
    const bool due = every > 0 && (step + 1) % every == 0;
    const bool asked = result.votes(RankSignal::save) > 0;
    if (asked) grant_save_wish();
    if (ending_ || better || wishes.save || asked || due)
      save(stopped_ ? SaveReason::stop
           : last   ? SaveReason::end
           : due    ? SaveReason::scheduled
           : better ? SaveReason::best
                    : SaveReason::asked);
    if (stopped_ || wishes.stop) break;
  }
  if (first_step_ == max_steps_ && saver_->last_step() < 0 && !all_done_)
    save(SaveReason::end);  // nothing was trained, but what was read is kept
  saver_->finish();
}

void Run::grant_save_wish() {
  if (!save_wish_) return;
  save_wish_->grant([this](const std::string& text) { reporter_.say(text); });
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
  const std::string wish =
      preemption_ && preemption_->asked() ? Preemption::signal() : "a signal to another rank";
  if (stopped_)
    preemption_->stay();
  else
    preemption_.reset();
  reporter_.end_steps(trainer_->next_step() == max_steps_);
  say_foretold();
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
    reporter_.say(wish + ": saved step " + std::to_string(trainer_->next_step()) + " of " +
                  std::to_string(max_steps_) + ", ending; the same command goes on from there" +
                  (options_.command.empty() ? "" : "\n  " + options_.command));
    return launch::kPreempted;
  }
  if (reporter_ && trainer_->next_step() == max_steps_ && !all_done_) say_done(sample);
  return 0;
}

// What the plan said beside what the steps took. A run that has trained does not fail over it.
void Run::say_foretold() {
  const std::string line = reporter_ ? foretold_.line() : "";
  if (line.empty()) return;
  reporter_.say(line);
  try {
    reporter_.put("plan.json", plan_text(*trainer_, foretold_));
  } catch (const Error& error) {
    reporter_.say("warning: plan.json lacks what the run took: " + error.message());
  }
}

void Run::write_traces() {
  fs::path traces = run_path_ / "trace";
  std::error_code failed;
  fs::create_directories(traces, failed);
  fs::path file = traces / ("rank_" + std::to_string(world_->rank()) + ".json");
  std::ofstream trace(file);
  trace << world_->trace().json(world_->rank());
  if (!trace.flush()) unwritable(file, errno);
}

namespace {

constexpr const char* kAdapterFolder = "hf_adapter";  // beside hf/, with lora.export = "both"

}  // namespace

std::vector<std::pair<fs::path, checkpoint::ExportForm>> Run::exports() const {
  using enum checkpoint::ExportForm;
  const Options& lora = table("lora");
  const std::string wanted = lora.get_int("r") > 0 ? lora.get_string("export") : "merged";
  if (table("checkpoint").get_string("export") == "none" || wanted == "none") return {};
  if (wanted == "both") return {{run_path_ / "hf", merged}, {run_path_ / kAdapterFolder, adapter}};
  return {{run_path_ / "hf", wanted == "merged" ? merged : adapter}};
}

void Run::write_exports(const fs::path& path) const {
  const auto wanted = exports();
  if (wanted.empty()) return;
  // Before the other one, so that no failure leaves adapters beside a model of another step, nor
  // another lora.export those of before.
  try {
    weights::remove_folder(run_path_ / kAdapterFolder);
  } catch (const Error&) {
    if (wanted.size() > 1) throw;  // else what somebody else has put there may stay
  }
  for (const auto& [folder, form] : wanted) {
    checkpoint::Source source(path);
    checkpoint::export_folder(source, folder, {.form = form});
  }
}

// Rank 0. The export is made by it alone, from the files, for as long as it takes: the others hear
// of its end in Ending::finish().
void Run::say_done(const std::string& sample) {
  if (table("checkpoint").get_string("export") == "final")
    write_exports(checkpoints_ / checkpoint::step_name(saver_->last_step()));
  for (const auto& [folder, form] : exports())
    reporter_.say("exported for Hugging Face: " + folder.string());
  if (std::ranges::any_of(exports(), [](const auto& made) {
        return made.second == checkpoint::ExportForm::adapter;
      })) {
    checkpoint::Source source(checkpoints_ / checkpoint::step_name(saver_->last_step()));
    if (const std::string lacks = checkpoint::trained_whole_text(source); !lacks.empty())
      reporter_.say("notice: " + lacks + "; lora.export = \"merged\" writes the whole model");
  }
  if (options_.sample_bytes > 0) {
    char title[80];
    std::snprintf(title, sizeof title, "a sample, temperature %g:", options_.sample_temperature);
    reporter_.show(std::string("\n") + title + "\n\n" + report::printable(sample) + "\n");
  }
  reporter_.say("done: " + std::to_string(max_steps_) +
                (max_steps_ == 1 ? " step in " : " steps in ") +
                report::human_duration(base::ms_since(started_) / 1000) + "; results in " +
                reporter_.folder().string());
}

}  // namespace meshwright::train
