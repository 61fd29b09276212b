// The beginning of a run: it meets the other ranks, finds what it continues, opens its data and
// makes its trainer.
#include <algorithm>
#include <utility>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/weights/model_tensors.h"
#include "engine/config/config.h"
#include "engine/data/dataset.h"
#include "engine/data/mix.h"
#include "engine/job/adapters.h"
#include "engine/job/job.h"
#include "engine/job/plan.h"
#include "engine/job/trainable.h"
#include "engine/launch/device/device.h"
#include "engine/train/preflight/same_run.h"
#include "engine/train/run/rank_run.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/stages.h"
#include "meshwright/nn/moe.h"
#include "sdk/base/even_tokens.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/plugin_at_work.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::train {

namespace fs = std::filesystem;

namespace {

Job job_of(const config::Reading& given) {
  base::hand_files(given.files());
  Diagnostics found;
  std::optional<plan::Job> loaded = plan::load_job(given.source({}, found), found);
  found.throw_if_any();
  Job out;
  out.impl() = std::move(*loaded);
  device::load_early(out.table("dist_env"));
  return out;
}

}  // namespace

Run::Run(const RunOptions& options, fs::path& log)
    : options_(options),
      log_(log),
      job_(job_of(*options.given)),
      seed_(static_cast<uint64_t>(table("run").get_int("seed"))),
      max_steps_(table("step_scheduler").find_int("max_steps").value_or(0)),
      pretrained_(table("model").get_string("pretrained")),
      reporter_({options.colour, options.unicode, options.width}, options.live, options.tell) {
  if (options.tell) lost_ = std::make_shared<LostFolder>();
  Diagnostics missing;
  plan::check_trainable(job_.impl(), missing);
  plan::check_exports(job_.impl().config, missing);
  missing.throw_if_any();
  set_threads(job_);
  keep_freed_memory();
  config_file_ = config::model_config_file(table("model"));
  // A plugin's family need not have one in its folders.
  if (job_.impl().model && !pretrained_.empty() && base::handed_file(config_file_) == nullptr &&
      !fs::exists(config_file_))
    config_file_.clear();
  run_path_ = config::run_folder(table("run"));
  checkpoints_ = run_path_ / "checkpoints";
}

// Empty: adapters, if there are any, start at random.
static std::string adapter_folder(const Options& lora) {
  return lora.get_int("r") > 0 ? lora.get_string("adapter") : "";
}

bool Run::open(rendezvous::Ending& together) {
  if (!config_file_.empty()) {
    const std::string* handed = base::handed_file(config_file_);
    config_text_ = handed != nullptr ? *handed : base::read_file(config_file_);
  }
  model_.emplace(make_model(job_));
  opened_ = prepare_run_data(job_, model_->outline.vocab_size, seed_);
  if (opened_.source) job_.impl().samples = opened_.source->samples();
  const std::string hash =
      config_file_.empty() ? "none" : checkpoint::to_hex(checkpoint::checksum(config_text_));
  // Ranks that count epochs of other data would end at other steps.
  const std::optional<int64_t> samples = job_.impl().samples;
  world_ = join_world(job_,
                      {{"config.json of the model, whose hash is", hash},
                       {"the model's settings", plan::model_settings(job_.impl())},
                       {"samples of [dataset], of which there are",
                        samples ? std::to_string(*samples) : "any number"}},
                      &together);
  leader_ = world_->rank() == 0;
  detail::this_is_rank(world_->rank());
  world_->trace().enabled = options_.trace;
  memory_.emplace(world_->device());
  lock_ = lock_run(*world_, run_path_, options_.tell, lost_);
  // What became of a run that is there is not this start's to say before it goes on with it.
  std::error_code failed;
  begun_ = checkpoint::restarted() || !fs::exists(run_path_ / "run.log", failed);
  if (lock_ && begun_) log_ = run_path_ / "run.log";
  if (leader_ && begun_) CommTrace::clear(run_path_);
  check_shared(*world_, run_path_);
  comm_trace_.emplace(*world_, run_path_);
  memory_report_.emplace(*memory_, *world_, run_path_);
  beginning_ = begin_run(job_, *world_, checkpoints_);
  if (job_.impl().samples) {
    if (from() != nullptr) job_.impl().trained = {from()->meta().step, from()->meta().samples};
    max_steps_ =
        plan::make_plan(job_.impl(), {.world_size = world_->size(), .rank = world_->rank()})
            .max_steps.value_or(0);
  }
  if (from() == nullptr && !adapter_folder(table("lora")).empty())
    agree_or_throw(*world_, [&] {
      Diagnostics found;
      plan::check_adapter_files(job_.impl(), found);
      found.throw_if_any();
    });
  all_done_ = from() != nullptr && from()->meta().step >= max_steps_;
  if (!all_done_) return true;
  // What is asked for is what was trained, or it is not this run that is finished.
  open_data();
  agree_or_throw(*world_, [&] {
    refuse_another_run();
    if (leader_) before::refuse_other_settings(*from(), job_.impl());
  });
  if (beginning_.own)
    set_aside(beginning_, *world_, checkpoints_);  // tidies what an interrupted save left
  return false;
}

void Run::refuse_another_run() const {
  before::refuse_other_model(*from(), job_.impl(), model_->source, config_text_);
  before::refuse_other_data(*from(), job_.impl(), data_.fingerprint, seq_len());
  before::check_base(*from(), pretrained_);
}

// Data and weights.
std::vector<FileGroup> Run::files_read() const {
  std::vector<FileGroup> out = data_.files;
  if ((from() == nullptr || from()->meta().base) && !pretrained_.empty())
    out.push_back({"model.pretrained", "files of the weights", weight_files(pretrained_)});
  if (const std::string adapter = adapter_folder(table("lora"));
      from() == nullptr && !adapter.empty())
    out.push_back({"lora.adapter", "files of the adapters", weight_files(adapter)});
  return out;
}

// All ranks must have the data alike.
void Run::open_data() {
  if (data_.train.source) return;  // open() has had to
  check_sample(options_, model_->outline.vocab_size);
  if (options_.sample_bytes > 0) check_generates(*model_);
  data_ = open_run_data(job_, model_->outline.vocab_size, seed_, std::move(opened_));
  auto reach = [&](const OpenData& data) {
    if (data.source->has_documents())
      check_documents_reach(*model_->module(), model_->outline.architecture, data.config);
  };
  reach(data_.train);
  std::ranges::for_each(data_.validation, reach);
  if (std::string said =
          check_same_data(*world_, files_read(), table("dataset").get_string("verify") == "whole");
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
    return !data.source->has_documents() &&
           padding_of(*trainer_, *model_->running, data.config, 1).multiple > 0;
  };
  if (model_->source.plugin == nullptr && !cut(data_.train) &&
      std::ranges::none_of(data_.validation, cut))
    for (auto& [name, block] : find_moe_blocks(*model_->module()))
      if (auto* dispatcher = dynamic_cast<EvenTokens*>(&block->dispatcher()))
        dispatcher->promise_even_tokens();
  seed_generator(0);
}

// What the run continues, or the weights it starts from. Nothing is left then that refuses the run.
void Run::load() {
  const auto begin = std::chrono::steady_clock::now();
  if (from() != nullptr) {
    // All ranks continue, or none.
    agree_or_throw(*world_, [&] {
      refuse_another_run();
      before::check_scale(*from(), table("lora"), trainer_->plan().adapter_config);
    });
    try {
      if (!load_checkpoint(*trainer_, *from())) seed_generator(from()->meta().step);
    } catch (const Error& error) {
      throw with_way_on(error, from()->folder());
    }
    from()->release();  // it is pruned while the run goes on
  } else {
    load_weights(
        *trainer_, pretrained_, [&](const ParameterOutline& p) { return model_->initial_value(p); },
        seed_, adapter_folder(table("lora")));
    if (leader_ && !pretrained_.empty())
      if (const std::string unused = weights::unused_tensors(weights::WeightFolder(pretrained_),
                                                             pretrained_, trainer_->outline());
          !unused.empty())
        world_->notice(unused);
  }
  loading_ms_ = base::ms_since(begin);
  aside_ = set_aside(beginning_, *world_, checkpoints_);
  first_step_ = trainer_->next_step();
  order_mix();
}

// A mix goes on where its checkpoint was, with the sources in the order that they had there.
void Run::order_mix() {
  const std::shared_ptr<const data::Mix> mix = data_.train.mix();
  if (mix == nullptr) return;
  if (from() == nullptr || !from()->meta().mix) {
    mix_order_ = mix->order(batch());
    return;
  }
  const checkpoint::Meta& meta = from()->meta();
  data::MixStage then{meta.mix->first, {}, {}};
  std::vector<std::string> names;
  for (const checkpoint::MixedSource& source : meta.mix->sources) {
    names.push_back(source.name);
    then.shares.push_back(source.share);
    then.read.push_back(source.read);
  }
  const std::shared_ptr<const data::Mix> ordered = mix->in_order_of(names);
  for (size_t i = 0; i < names.size(); ++i)
    if (i >= ordered->sources().size() || ordered->sources()[i].name != names[i])
      throw Error(ErrorCode::checkpoint_mismatch,
                  from()->folder().string() +
                      " has read of a source of [[dataset.mix]] that is "
                      "not there now: " +
                      names[i])
          .key("dataset.mix.name")
          .help("add it again, with weight = 1 and schedule = { 1 = 0 } to read no more of it");
  data_.train.source = ordered;
  mix_order_ = ordered->order_after(then, meta.step, meta.samples, batch());
  const data::MixStage& now = mix_order_->stage_at(meta.samples);
  then.shares.resize(now.shares.size());
  if (then.shares == now.shares) return;
  const std::vector<int64_t> read = mix_order_->read_before(meta.samples);
  mix_changed_ = "[[dataset.mix]] goes on by other weights:";
  for (size_t i = 0; i < now.shares.size(); ++i)
    mix_changed_ += (i > 0 ? ", " : " ") + ordered->sources()[i].name + " " +
                    data::share_text(now.shares, i) + " (was " + data::share_text(then.shares, i) +
                    ", " + text::counted(read[i], "sample") + " read)";
}

void Run::report_start() {
  if (leader_ && !begun_) CommTrace::clear(run_path_);
  const std::vector<std::string> told = lines_of_all_ranks(*world_, startup_notices());
  speed_ = Speed(job_, *trainer_, data_.train.config.seq_len);
  begun_ = true;
  if (!leader_) return;
  save_request_.emplace(run_path_);
  prediction_error_ = PredictionError(job_, *trainer_, speed_.ranks_a_host());
  reporter_.open(run_path_, beginning_.own ? std::optional(from()->meta().step) : std::nullopt,
                 trainer_->max_steps(), table("report").get_bool("step_details"));
  if (lock_) log_ = run_path_ / "run.log";
  // A checkpoint's run is the folder around the checkpoints.
  std::string changes;
  if (beginning_.own)
    changes = changed_settings(run_path_, job_, {});
  else if (from() != nullptr)
    changes = changed_settings(fs::absolute(from()->folder()).parent_path().parent_path(), job_,
                               {"run.name", "run.dir", "checkpoint.resume"});
  write_records(reporter_, options_, job_, *trainer_, prediction_error_);
  if (table("checkpoint").get_string("on_failure") == "continue") reporter_.outlive_full_disks();
  report_job();
  if (!changes.empty()) reporter_.say(changes);
  if (!mix_changed_.empty()) reporter_.say(mix_changed_);
  for (const std::string& line : told) reporter_.say(line);
  if (!prediction_error_.warning().empty())
    reporter_.say("warning: " + prediction_error_.warning());
  reporter_.watch(monitor_settings(job_, *trainer_,
                                   beginning_.own ? std::optional(first_step_) : std::nullopt));
}

// What this rank was told at the start: of joining, of the plan, of its own part of the model.
std::vector<std::string> Run::startup_notices() const {
  const plan::JobPlan& plan = trainer_->plan();
  std::vector<std::string> notices = world_->notices();  // those of the sharding plan are in both
  for (const std::string& notice : plan.notices)
    if (std::ranges::find(notices, notice) == notices.end()) notices.push_back(notice);
  std::vector<std::string> out;
  for (const std::string& notice : notices) out.push_back("notice: " + notice);
  for (const std::string& warning : plan.warnings) out.push_back("warning: " + warning);
  return out;
}

// "validation: 3 files, 1,280 bytes, 16 of 19 samples"
std::string Run::validation_text(const OpenData& data) const {
  const int64_t used = validation_samples(data), all = data.source->samples();
  std::string out = "validation" + (data.config.name.empty() ? "" : " " + data.config.name) + ": " +
                    data.source->describe();
  const std::string many = text::counted(all, "sample");
  if (used < all)
    out += ", " + report::human_count(used) + " of " + many;
  else if (!out.ends_with(", " + many))
    out += ", " + many;
  const int64_t asked = table("validation_dataset").get_int("num_batches");
  if (asked > (all + batch() - 1) / batch())
    out += ", each once: fewer than the " + report::human_count(asked) +
           " batches of validation_dataset.num_batches";
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
      strategy + " on " + text::counted(world_->size(), "rank") + ": " +
      model_->outline.architecture + ", " + report::human_count(parameters) + " parameters" +
      (trained < parameters ? ", of which " + report::human_count(trained) + " train" : "") +
      "; batch " + std::to_string(trainer_->local_batch()) + " x " +
      std::to_string(trainer_->accumulation()) + " x " +
      std::to_string(trainer_->data_parallel_size()) + " samples of " +
      std::to_string(data_.train.config.seq_len) + " tokens");
  if (const Stages* stages = trainer_->stages()) reporter_.say("pipeline: " + stages->describe());
  const int64_t samples = data_.train.source->samples();
  reporter_.say("data: " + data_.train.source->describe() + ", " + report::human_count(samples) +
                (samples == 1 ? " sample" : " samples"));
  for (const OpenData& one : data_.validation) reporter_.say(validation_text(one));
  auto say_of = [&](const OpenData& one) {
    const std::string name =
        one.config.table + (one.config.name.empty() ? "" : " " + one.config.name);
    for (const std::string& line : one.source->report()) reporter_.say(name + ": " + line);
  };
  say_of(data_.train);
  if (const std::shared_ptr<const data::Mix> mix = data_.train.mix()) {
    const int64_t samples_read = samples_before(trainer_->max_steps());
    for (const std::string& line : data::lines_of(*mix, mix_order_->read_before(samples_read)))
      reporter_.say("dataset: " + line);
  }
  // Rows share samples: the batch says little of how many a step learns from.
  if (const DatasetInspector* rows = data::inspector_of(data_.train.config))
    reporter_.say("dataset: " + data::tell_steps(samples, batch(),
                                                 data::documents_in(rows->numbers(
                                                     data::request_of(data_.train.config)))));
  std::ranges::for_each(data_.validation, say_of);
}

}  // namespace meshwright::train
