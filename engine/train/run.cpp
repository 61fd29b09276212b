#include "engine/train/run.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <chrono>
#include <fstream>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/export.h"
#include "engine/config/describe.h"
#include "engine/data/dataset.h"
#include "engine/files/clock.h"
#include "engine/launch/exit_status.h"
#include "engine/nets/causal_lm.h"
#include "engine/nets/sample.h"
#include "engine/plan/plan.h"
#include "engine/report/progress.h"
#include "engine/report/report.h"
#include "engine/train/checkpointing.h"
#include "engine/train/continuing.h"
#include "engine/train/expert_load.h"
#include "engine/train/fill.h"
#include "engine/train/join.h"
#include "engine/train/logits.h"
#include "engine/train/memory.h"
#include "engine/train/metrics.h"
#include "engine/train/preemption.h"
#include "engine/train/same_data.h"
#include "engine/train/shared_folder.h"
#include "engine/weights/safetensors.h"
#include "meshwright/abi.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

namespace {

namespace fs = std::filesystem;
using at::Tensor;
using Clock = std::chrono::steady_clock;

// The samples of one micro-batch as inputs and targets.
class Batches {
 public:
  Batches(const data::Dataset& data, data::Sampler sampler, int64_t rows, at::Device device)
      : data_(data), sampler_(sampler), rows_(rows), device_(device), ids_(at::empty({rows, data.seq_len() + 1}, at::kLong)) {}
  // Rows at positions [first, first + rows).
  Tensor read(int64_t first) {
    // The copy to a device goes on while the host reads the next rows; the allocator of pinned memory keeps these until then.
    if (!device_.is_cpu()) ids_ = at::empty(ids_.sizes(), ids_.options().pinned_memory(true));
    for (int64_t row = 0; row < rows_; ++row)
      data_.read(sampler_.at(first + row), ids_.mutable_data_ptr<int64_t>() + row * (data_.seq_len() + 1));
    return device_.is_cpu() ? ids_ : ids_.to(device_, /*non_blocking=*/true);
  }

 private:
  const data::Dataset& data_;
  data::Sampler sampler_;
  int64_t rows_;
  at::Device device_;
  Tensor ids_;
};

// Collective. Parameters are gathered once for the whole text; every rank writes the same one.
std::string write_sample(Trainer& trainer, nets::CausalLM& net, const RunOptions& options, int64_t seq_len, uint64_t seed) {
  nets::GenerateOptions generate;
  generate.max_new_tokens = options.sample_bytes;
  generate.temperature = options.sample_temperature;
  generate.seed = seed;
  generate.context = std::min(seq_len, net->max_positions());  // no further back than it has learned to look
  std::vector<int64_t> prompt;
  for (char c : options.sample_prompt) prompt.push_back(static_cast<unsigned char>(c));
  std::vector<int64_t> bytes;
  bool training = net->is_training();
  net->eval();
  trainer.model().summon_full_parameters(
      [&] { bytes = nets::generate([&](const Tensor& ids) { return logits_of(trainer, net, ids); }, std::move(prompt), generate); });
  net->train(training);
  std::string text = options.sample_prompt;
  for (int64_t byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

std::string environment_json(const Job& job, Trainer& trainer, int64_t threads) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  boost::json::object out;
  out["meshwright"] = MESHWRIGHT_VERSION;
  out["host"] = host;
  out["world_size"] = trainer.world().size();
  out["threads"] = threads;
  out["device"] = trainer.world().device().str();
  const plugins::LoadedPlugin& plugin = *trainer.plan().strategy.plugin;
  out["plugin"] = {{"name", plugin.name}, {"version", plugin.version}, {"path", plugin.path.string()}, {"facts", plugin.facts_hash}};
  boost::json::object facts;
  for (const auto& [name, value] : plugins::engine_facts()) facts[name] = value;
  out["facts"] = facts;
  out["file"] = job.impl().config.file.string();
  return report::pretty_json(out);
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

int run_rank(const RunOptions& options, rendezvous::Ending& together, fs::path& log) {
  Clock::time_point started = Clock::now();
  Job job = Job::from_file(options.file, options.sets);
  Diagnostics missing;
  plan::check_trainable(job.impl(), missing);
  missing.throw_if_any();
  set_threads(job);
  keep_freed_memory();
  std::string config_path = job.table("model").get_string("config"), pretrained = job.table("model").get_string("pretrained");
  std::string model_path = config_path.empty() ? pretrained : config_path;
  fs::path config_file = fs::is_directory(model_path) ? fs::path(model_path) / "config.json" : fs::path(model_path);
  std::shared_ptr<World> world =
      join(job, {{"config.json of the model, whose hash is", std::to_string(std::hash<std::string>()(read_file(config_file)))}}, &together);
  bool leader = world->rank() == 0;
  world->trace().enabled = options.trace;
  MemoryMeter memory(world->device());

  const Options& run = job.table("run");
  auto seed = static_cast<uint64_t>(run.get_int("seed"));
  fs::path run_path = fs::path(run.get_string("dir")) / run.get_string("name"), checkpoints = run_path / "checkpoints";
  const int64_t max_steps = job.table("step_scheduler").get_int("max_steps");
  std::unique_ptr<files::RunLock> lock = lock_run(*world, run_path);
  if (lock) log = run_path / "run.log";
  check_shared(*world, run_path);
  ResumePoint beginning = begin_run(job, *world, checkpoints);
  const std::unique_ptr<checkpoint::Checkpoint>& from = beginning.from;
  if (from && from->meta().step >= max_steps) {
    if (beginning.own) make_way(beginning, *world, checkpoints);  // tidies what an interrupted save left
    if (leader) say_finished(*from, max_steps);
    return 0;
  }
  DType storage = *job.table("model").find_dtype("torch_dtype");
  nets::CausalLM net = nets::build_model(model_path, storage, at::kMeta);
  ModelOutline outline = net->outline();
  int64_t vocab = outline.vocab_size;
  check_sample(options, vocab);
  data::DatasetConfig data_config = data::dataset_config(job.table("dataset"), vocab, seed);
  data::check_text_model(data_config, pretrained);
  std::unique_ptr<data::Dataset> train_data = data::open_dataset(data_config), validation_data;
  const Options& validation = job.table("validation_dataset");
  if (validation.is_set("path") || (validation.is_given("kind") && validation.get_string("kind") == "mock"))
    validation_data = data::open_dataset(data::dataset_config(validation, vocab, seed + 1));

  std::vector<FileGroup> read_by_all{{"dataset.path", "files of the training data", data::dataset_files(data_config)}};
  if (validation_data)
    read_by_all.push_back({"validation_dataset.path", "files of the validation data",
                           data::dataset_files(data::dataset_config(validation, vocab, seed + 1))});
  if (!from && !pretrained.empty()) read_by_all.push_back({"model.pretrained", "files of the weights", weight_files(pretrained)});
  if (std::string said = check_same_data(*world, read_by_all, job.table("dataset").get_string("verify") == "whole"); !said.empty())
    world->notice(said);

  Trainer trainer(job, world, net.ptr(), outline, job.table("step_scheduler").get_int("local_batch_size") * data_config.seq_len);
  std::string fingerprint = checkpoint::to_hex(train_data->fingerprint());
  // Dropout draws from LibTorch's own generator, which starts anywhere: the same numbers in every run, others on every data-parallel rank.
  auto seed_generator = [&](int64_t step) {
    at::manual_seed((seed + static_cast<uint64_t>(step) * 0x2545f4914f6cdd1du) * 0x9e3779b97f4a7c15u +
                    static_cast<uint64_t>(trainer.data_parallel_rank()));
  };
  seed_generator(0);
  Clock::time_point loading = Clock::now();
  if (from) {
    // All ranks continue, or none.
    agree_or_throw(*world, outcome_of([&] {
      check_data(*from, job, fingerprint, data_config.seq_len);
      try {
        if (!load_checkpoint(trainer, *from)) seed_generator(from->meta().step);
      } catch (const Error& error) {
        throw with_way_on(error, from->folder());
      }
      return std::string();
    }));
  } else {
    fill_weights(trainer, pretrained, net, seed);
    if (std::string unused = pretrained.empty() || world->rank() != 0 ? "" : unused_tensors(pretrained, trainer.outline()); !unused.empty())
      world->notice(unused);
  }
  double loading_ms = files::ms_since(loading);
  const std::string aside = make_way(beginning, *world, checkpoints);

  report::Output out(stdout, "standard output");
  report::Style style{options.colour, options.unicode, options.width};
  std::unique_ptr<RunFolder> folder;
  std::unique_ptr<Progress> progress;
  if (leader) {
    folder = std::make_unique<RunFolder>(run_path, beginning.own ? std::optional(from->meta().step) : std::nullopt);
    folder->put("config.toml", read_file(options.file));
    // A file that train takes again: no table that is dropped when it is written down.
    std::vector<std::string> without;
    if (!job.impl().config.shared.pipeline_given) without.emplace_back("distributed.pipeline");
    for (const char* table : {"distributed.moe", "distributed.moe.mp_policy"}) {
      const Options& moe = job.table(table);
      auto given = [&](const meshwright_option* option) { return moe.is_given(option->name); };
      if (std::none_of(moe.schema().options.begin(), moe.schema().options.end(), given)) without.emplace_back(table);
    }
    folder->put("config.resolved.toml", config::show_toml(job.impl().config, /*with_origins=*/true, without));
    plan::JobPlan plan = plan::make_plan(job.impl(), {.world_size = world->size(), .rank = 0});
    folder->put("plan.json", report::pretty_json(plan::to_json(plan)));
    folder->put("env.json", environment_json(job, trainer, at::get_num_threads()));
    progress = std::make_unique<Progress>(out, style, options.live, trainer.max_steps());
    if (job.table("checkpoint").get_string("on_failure") == "continue")
      folder->outlive_full_disks([&](const std::string& text) { progress->say("warning: " + text); });
    int64_t parameters = 0;
    for (const ParameterOutline& p : outline.parameters) parameters += element_count(p.shape);
    auto say = [&](const std::string& line) {
      folder->log(line);
      progress->say(line);
    };
    if (!folder->kept().empty()) say("an earlier run of this name left metrics; they are now " + folder->kept());
    if (!aside.empty()) say("checkpoints that this run does not continue are now in " + aside);
    if (from) say(continue_text(*from, *world, trainer.plan().strategy.info->name, loading_ms));
    say(trainer.plan().strategy.info->name + " on " + report::counted(world->size(), "rank", "ranks") + ": " + outline.architecture + ", " +
        report::human_count(parameters) + " parameters; batch " + std::to_string(trainer.local_batch()) + " x " +
        std::to_string(trainer.accumulation()) + " x " + std::to_string(trainer.data_parallel_size()) + " samples of " +
        std::to_string(data_config.seq_len) + " tokens");
    say("data: " + train_data->describe() + ", " + report::human_count(train_data->samples()) + " samples");
    if (validation_data) say("validation: " + validation_data->describe());
    for (const std::string& notice : world->notices()) say("notice: " + notice);
    for (const std::string& notice : trainer.plan().notices) say("notice: " + notice);
    for (const std::string& warning : trainer.plan().warnings) say("warning: " + warning);
  }

  int64_t rows = trainer.local_batch(), dp = trainer.data_parallel_size(), dp_rank = trainer.data_parallel_rank(),
          accumulation = trainer.accumulation();
  Batches batches(*train_data, data::Sampler(train_data->samples(), job.table("dataset").get_bool("shuffle"), seed), rows, world->device());
  std::optional<Batches> validation_batches;
  if (validation_data)
    validation_batches.emplace(*validation_data, data::Sampler(validation_data->samples(), validation.get_bool("shuffle"), seed + 1), rows,
                               world->device());
  auto validate = [&](int64_t step) {
    // As many samples as num_batches training steps would read: the same on every layout, split over the data-parallel ranks.
    double loss = trainer.evaluate(validation.get_int("num_batches") * accumulation, [&](int64_t micro) {
      return loss_of(trainer, net, validation_batches->read((micro * dp + dp_rank) * rows));
    });
    if (!leader) return;
    folder->validation(step, loss);
    progress->validation(step, loss);
    char line[80];
    std::snprintf(line, sizeof line, "step %lld  validation loss %.6f", static_cast<long long>(step) + 1, loss);
    folder->log(line);
  };

  // The samples of a step follow each other, whatever the batch of the steps before was.
  const int64_t batch = rows * accumulation * dp, first_step = trainer.next_step(), first_sample = from ? from->meta().samples : 0;
  auto samples_before = [&](int64_t step) { return first_sample + (step - first_step) * batch; };

  Saver::Settings saving;
  saving.folder = checkpoints;
  const Options& checkpoint_table = job.table("checkpoint");
  saving.keep = checkpoint_table.get_int("keep");
  saving.background = checkpoint_table.get_bool("async");
  saving.facts.architecture = outline.architecture;
  saving.facts.seq_len = data_config.seq_len;
  saving.facts.data_fingerprint = fingerprint;
  saving.facts.shuffle = job.table("dataset").get_bool("shuffle");
  saving.facts.seed = seed;
  saving.facts.max_steps = max_steps;
  for (const std::string& notice : carry_along(saving, from.get(), config_file, pretrained, data_config.kind == "text")) {
    if (!leader) continue;
    folder->log("notice: " + notice);
    progress->say("notice: " + notice);
  }
  const std::string& exports = checkpoint_table.get_string("export");
  auto export_to_folder = [hf = run_path / "hf"](const fs::path& path) {
    checkpoint::Source source(path);
    checkpoint::export_folder(source, hf, {});
  };
  if (exports == "every") saving.published = export_to_folder;
  // A failed save may be lived with while there is something to train on, not at the end.
  bool ending = first_step == max_steps;
  saving.done = [&](const SaveReport& report) {
    // Replicas that differ are no matter of the disk: what such a run trains is worth nothing.
    bool goes_on = checkpoint_table.get_string("on_failure") == "continue" && !ending &&
                   !(report.error && report.error->code() == ErrorCode::replicas_differ);
    if (leader) tell_save(report, goes_on, *folder, *progress, max_steps);
    if (report.error && !goes_on) throw unsaved(*report.error, ending, checkpoints);
  };
  Saver saver(trainer, std::move(saving));
  const int64_t every = checkpoint_table.get_int("every_steps");

  net->train();
  std::optional<Preemption> preemption(std::in_place, /*speaks=*/leader);
  bool stopped = false;
  LoadHistory loads;
  for (int64_t step = first_step; step < max_steps; ++step) {
    Clock::time_point begin = Clock::now();
    memory.reset_peak();
    saver.before_step();
    int64_t sample = samples_before(step);
    StepResult result = trainer.step([&](int64_t micro) {
      if (preemption->asked()) trainer.vote(RankSignal::stop);
      return loss_of(trainer, net, batches.read(sample + (micro * dp + dp_rank) * rows));
    });
    StepCost cost{files::ms_since(begin), memory.peak()};
    if (leader) {
      folder->step(result, cost);
      loads.add(result);
      folder->log(Progress::line(result, cost, trainer.max_steps()));
      progress->step(result, cost);
    }
    bool last = step + 1 == trainer.max_steps();
    if (validation_batches && ((step + 1) % validation.get_int("every_steps") == 0 || last)) validate(step);
    saver.after_step(result);
    // All ranks end after the same step, whichever of them was told to. After the last one the run is about to end anyway.
    stopped = result.votes(RankSignal::stop) > 0 && !last;
    ending = last || stopped;
    if (ending || (every > 0 && (step + 1) % every == 0)) {
      if (leader) folder->sync();
      saver.save(samples_before(step + 1), result.lr);
    }
    if (stopped) break;
  }
  if (first_step == max_steps) saver.save(first_sample, 0);  // nothing was trained, but what was read is kept
  saver.finish();
  std::string wish = preemption->asked() ? preemption->signal() : "a signal to another rank";
  if (stopped)
    preemption->stay();
  else
    preemption.reset();
  if (leader) progress->finish();
  if (leader && !loads.empty()) {
    folder->put("expert_load.json", loads.json());
    progress->say(loads.draw(style));
    folder->log(loads.draw({.width = 120}));
  }
  if (options.trace) {
    fs::path traces = fs::path(run.get_string("dir")) / run.get_string("name") / "trace";
    std::error_code failed;
    fs::create_directories(traces, failed);
    fs::path file = traces / ("rank_" + std::to_string(world->rank()) + ".json");
    std::ofstream trace(file);
    trace << world->trace().json(world->rank());
    if (!trace.flush()) unwritable(file, errno);
  }
  if (stopped) {
    world->everyone()->barrier();
    if (leader) {
      std::string words = wish + ": saved step " + std::to_string(trainer.next_step()) + " of " + std::to_string(max_steps) +
                          ", ending; the same command goes on from there" + (options.command.empty() ? "" : "\n  " + options.command);
      folder->log(words);
      progress->say(words);
    }
    return launch::kPreempted;
  }
  std::string sample;
  if (options.sample_bytes > 0) {
    sample = write_sample(trainer, net, options, data_config.seq_len, seed);
    if (leader) folder->put("sample.txt", sample);
  }
  world->everyone()->barrier();
  if (leader) {
    // By one rank alone, from the files, for as long as it takes: the others hear of its end in Ending::finish().
    if (exports == "final") export_to_folder(checkpoints / checkpoint::step_name(saver.last_step()));
    if (exports != "none") {
      std::string line = "exported for Hugging Face: " + (run_path / "hf").string();
      folder->log(line);
      progress->say(line);
    }
    if (options.sample_bytes > 0) {
      char title[80];
      std::snprintf(title, sizeof title, "a sample, temperature %g:", options.sample_temperature);
      progress->say(std::string("\n") + title + "\n\n" + report::printable(sample) + "\n");
    }
    std::string done = "done: " + std::to_string(trainer.max_steps()) + " steps in " +
                       report::human_duration(files::ms_since(started) / 1000) + "; results in " + folder->path().string();
    folder->log(done);
    progress->say(done);
  }
  return 0;
}

}  // namespace meshwright::train
