#include "engine/train/resume.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "engine/checkpoint/adapters.h"
#include "engine/launch/run_folder.h"
#include "engine/plan/plan.h"
#include "engine/report/report.h"
#include "engine/train/run_records.h"
#include "engine/trainer/rank_agreement.h"
#include "engine/weights/auxiliary_files.h"
#include "engine/weights/read_region.h"
#include "engine/weights/safetensors.h"
#include "sdk/base/low_rank.h"

namespace meshwright::train {

namespace fs = std::filesystem;

std::unique_ptr<base::RunLock> lock_run(World& world, const fs::path& run,
                                        const std::function<void(const std::string&)>& say,
                                        const std::shared_ptr<LostFolder>& lost) {
  std::unique_ptr<base::RunLock> lock;
  std::function<void(const Error&)> hears;
  if (lost) hears = [lost](const Error& why) { lost->tell(why); };
  agree_or_throw(world, outcome_of([&] {
                   if (world.rank() == 0 && !launch::launcher_owns_run_folder())
                     lock = launch::own_run_folder(
                         run, launch::process_environment(),
                         [&](const std::string& text) {
                           if (say) return say("notice: " + text);
                           std::fprintf(stderr, "notice: %s\n", text.c_str());
                         },
                         hears);
                   return std::string();
                 }));
  return lock;
}

ResumePoint begin_run(const Job& job, World& world, const fs::path& checkpoints) {
  ResumePoint out;
  auto choose = [&] {
    if (world.rank() != 0) return std::string();
    out.start = checkpoint::choose_start(job.table("checkpoint").get_string("resume"), checkpoints,
                                         checkpoint::restarted());
    return (out.start.own ? "1" : "0") + out.start.from.string();
  };
  std::string choice = agree_or_throw(world, outcome_of(choose))[0], path = choice.substr(1);
  out.own = choice[0] == '1';
  auto open = [&] {
    if (!path.empty()) out.from = std::make_unique<checkpoint::Checkpoint>(path);
    return std::string();
  };
  agree_or_throw(world, outcome_of(open));
  return out;
}

std::string make_way(const ResumePoint& beginning, World& world, const fs::path& checkpoints) {
  std::string aside;
  agree_or_throw(world, outcome_of([&] {
                   if (world.rank() == 0)
                     aside = checkpoint::make_way(beginning.start, checkpoints);
                   return std::string();
                 }));
  return aside;
}

namespace {

// The first word of a command, as a shell takes it.
std::string program_of(const std::string& command) {
  bool quoted = false;
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i] == '\'')
      quoted = !quoted;
    else if (command[i] == '\\' && !quoted)
      ++i;
    else if (command[i] == ' ' && !quoted)
      return command.substr(0, i);
  }
  return command.empty() ? "meshwright" : command;
}

}  // namespace

std::string finished_text(const fs::path& checkpoint, int64_t steps, int64_t max_steps,
                          const std::string& command, std::optional<int64_t> epochs) {
  const std::pair<std::string, const char*> ways[] = {
      {epochs ? "--set step_scheduler.epochs=" + std::to_string(2 * *epochs)
              : "--set step_scheduler.max_steps=" + std::to_string(2 * steps),
       "to train on"},
      {"--set run.name=another", "to train another run beside it"},
      {"--set checkpoint.resume=none",
       "to start this one afresh; what is there is kept under another name"}};
  size_t width = 0;
  for (const auto& [what, why] : ways) width = std::max(width, what.size());
  std::string out = "this run is finished: " + checkpoint.string() + " has " +
                    std::to_string(steps) + " steps, " +
                    (epochs ? "step_scheduler.epochs = " + std::to_string(*epochs)
                            : std::string("step_scheduler.max_steps")) +
                    " is " + std::to_string(max_steps) + "\n";
  for (const auto& [what, why] : ways) out += "  " + report::pad(what, width) + "   " + why + "\n";
  return out + "  " + program_of(command) + " generate " + checkpoint.string() +
         "   to let it write\n";
}

namespace {

// Of other samples: which settings are others than those of the checkpoint's run.
Error other_data(const checkpoint::Checkpoint& from, const Job& job) {
  const Options& dataset = job.table("dataset");
  const std::string named = dataset.is_set("plugin") ? "dataset.plugin" : "dataset.path";
  std::string what =
      from.folder().string() + ": it was trained on other data than " + named + " now names";
  // A checkpoint's run is the folder around the checkpoints.
  std::optional<std::vector<config::Difference>> changed =
      settings_changed(fs::absolute(from.folder()).parent_path().parent_path(), job);
  if (!changed) {
    return Error(ErrorCode::checkpoint_mismatch, what)
        .key(named)
        .help(std::string("compare [dataset]") +
              (dataset.is_set("plugin") ? " and its plugin's table" : "") +
              " with what the run had: what decides about a token or its place must be the same");
  }
  // How data is read and kept changes no token.
  std::erase_if(*changed, [](const config::Difference& one) {
    return (!one.key.starts_with("dataset.") && one.key != "model.pretrained") ||
           one.key == "dataset.workers" || one.key == "dataset.verify" ||
           one.key.ends_with(".cache") || one.key.ends_with(".threads");
  });
  if (changed->empty())
    return Error(ErrorCode::checkpoint_mismatch, what)
        .key(named)
        .help("the settings of [dataset] are those of the run: the files behind them have changed");
  for (size_t i = 0; i < changed->size(); ++i)
    what += (i == 0 ? ": " : ", ") + change_text((*changed)[i]);
  Error error(ErrorCode::checkpoint_mismatch, what);
  error.key(changed->front().key);
  for (const config::Difference& one : *changed)
    if (!one.values.front().empty()) error.help("set " + one.key + " = " + one.values.front());
  return error.help("if that is not all of it, the files behind them have changed");
}

}  // namespace

void check_data(const checkpoint::Checkpoint& from, const Job& job, const std::string& fingerprint,
                int64_t seq_len) {
  const checkpoint::Meta& meta = from.meta();
  if (meta.data_fingerprint.empty())
    return;  // saved by a program of its own, which feeds its own data
  auto refuse_as = [&](Error error) {
    throw error.help("to train its weights on other data: " + way_by_export(from))
        .help(
            "set checkpoint.resume = \"none\" to start afresh; what is there is kept under another "
            "name");
  };
  auto refuse = [&](const std::string& what, const std::string& key, const std::string& value) {
    refuse_as(Error(ErrorCode::checkpoint_mismatch, from.folder().string() + ": " + what)
                  .key(key)
                  .help("set " + key + " = " + value));
  };
  auto was = [](int64_t then, int64_t now) {
    return std::to_string(then) + ", this job's is " + std::to_string(now);
  };
  int64_t seed = job.table("run").get_int("seed");
  bool shuffle = job.table("dataset").get_bool("shuffle");
  if (meta.seq_len != seq_len)
    refuse("its seq_len is " + was(meta.seq_len, seq_len), "dataset.seq_len",
           std::to_string(meta.seq_len));
  if (meta.shuffle != shuffle)
    refuse(meta.shuffle ? "its samples are shuffled, this job's are not"
                        : "its samples are in order, this job's are shuffled",
           "dataset.shuffle", meta.shuffle ? "true" : "false");
  if (static_cast<int64_t>(meta.seed) != seed)
    refuse(
        "its run.seed, which orders the samples, is " + was(static_cast<int64_t>(meta.seed), seed),
        "run.seed", std::to_string(static_cast<int64_t>(meta.seed)));
  if (meta.data_fingerprint != fingerprint) refuse_as(other_data(from, job));
}

void check_base(checkpoint::Checkpoint& from, const std::string& pretrained) {
  const std::optional<checkpoint::BaseRecord>& base = from.meta().base;
  if (!base) return;
  if (pretrained.empty())
    throw Error(ErrorCode::checkpoint_mismatch,
                from.folder().string() + ": its adapters are of the model in " + base->path +
                    ", this job names no folder of weights")
        .key("model.pretrained")
        .help("set model.pretrained = \"" + base->path + "\"")
        .help("set run.name to another name to train this job beside it");
  from.base_is_in(pretrained, checkpoint::BaseNamedBy::pretrained);
  from.open_base();
}

void check_scale(checkpoint::Checkpoint& from, const Options& lora, const std::string& config) {
  if (lora.get_int("r") == 0) return;
  const std::optional<checkpoint::PeftScale> was = checkpoint::scale_of(from);
  if (!was) return;
  auto refuse = [&](const std::string& name, const OptionValue& then, const OptionValue& now) {
    const std::string key = "lora." + name;
    throw Error(ErrorCode::checkpoint_mismatch,
                from.folder().string() + ": its adapters were trained with " + key + " = " +
                    to_toml(then) + ", this job has " + to_toml(now))
        .key(key)
        .at(lora.origin(name))
        .help("set " + key + " = " + to_toml(then))
        .help("set run.name to another name to train this job beside it");
  };
  auto hold = [&](const char* name, const OptionValue& then, const OptionValue& now) {
    if (then != now) refuse(name, then, now);
  };
  hold("r", static_cast<int64_t>(was->r), lora.get_int("r"));
  hold("alpha", was->alpha, lora.get_number("alpha"));
  hold("rslora", was->rank_stabilized, lora.get_bool("rslora"));
  if (config.empty()) return;
  // Both name modules alike: peft_config() wrote them.
  const checkpoint::PeftScale now = checkpoint::scale_in(config, from.folder());
  hold("rank_pattern", was->ranks, now.ranks);
  hold("alpha_pattern", was->alphas, now.alphas);
}

std::string way_by_export(const checkpoint::Checkpoint& from) {
  return "meshwright checkpoint export " + from.folder().string() +
         (checkpoint::names_adapters(from.meta()) ? " --merged" : "") +
         " --out DIR, then model.pretrained = \"DIR\" under another run.name";
}

void leave_to_base(Saver::Settings& saving, const checkpoint::Checkpoint* from,
                   const std::string& pretrained, const ModelOutline& outline) {
  if (pretrained.empty() || (from != nullptr && !from->meta().base)) return;
  const weights::WeightFolder folder(pretrained);
  saving.facts.base = checkpoint::BaseRecord{fs::absolute(pretrained).lexically_normal().string(),
                                             checkpoint::fingerprint_of(folder)};
  if (from != nullptr) {
    // What trained in between is no longer the folder's.
    for (const checkpoint::TensorRecord& tensor : from->meta().tensors)
      if (tensor.base) saving.in_base.emplace(tensor.name, *tensor.base);
    return;
  }
  for (const ParameterOutline& parameter : outline.parameters)
    if (std::string name = weights::name_in(folder, outline.architecture, parameter);
        !name.empty() && !low_rank_factor(parameter.name))
      saving.in_base.emplace(parameter.name, std::move(name));
}

Error with_way_on(Error error, const fs::path& damaged) {
  if (error.code() != ErrorCode::bad_checkpoint) return error;
  std::vector<checkpoint::Found> all = checkpoint::find_all(damaged.parent_path());
  for (size_t i = all.size(); i-- > 0;)
    if (all[i].problem.empty() && all[i].path != damaged)
      return error.key("checkpoint.resume")
          .help("set checkpoint.resume = \"" + all[i].path.string() + "\" to continue that one");
  return error.key("checkpoint.resume")
      .help(
          "set checkpoint.resume = \"none\" to start afresh; what is there is kept under another "
          "name");
}

Error unsaved(Error error, bool ending, const fs::path& checkpoints) {
  // Neither room nor patience helps.
  if (error.code() == ErrorCode::replicas_differ || error.code() == ErrorCode::file_unreadable)
    return error;
  if (!ending)
    return error.help(
        "set checkpoint.on_failure = \"continue\" to train on when a checkpoint cannot be written");
  std::vector<checkpoint::Found> kept = checkpoint::find_all(checkpoints);
  std::string from = kept.empty() ? "the start" : kept.back().path.filename().string();
  return error.help("make room and run the same command: it goes on from " + from +
                    " and saves again");
}

std::string resume_text(const checkpoint::Checkpoint& from, const World& world,
                        const std::string& strategy, double ms) {
  const checkpoint::Meta& meta = from.meta();
  std::string out =
      "continues after step " + std::to_string(meta.step) + ": " + from.folder().string();
  if (meta.strategy != strategy || meta.world_size != world.size())
    out +=
        ", saved by " + meta.strategy + " on " + report::counted(meta.world_size, "rank", "ranks");
  char text[64];
  std::snprintf(text, sizeof text, "; %s read in %.2f s", report::human_bytes(from.bytes()).c_str(),
                ms / 1000);
  return out + text;
}

std::vector<std::string> carry_along(Saver::Settings& saving, const checkpoint::Checkpoint* from,
                                     const fs::path& config, const std::string& pretrained,
                                     bool bytes) {
  constexpr std::string_view kSource = "source/";
  std::vector<std::string> notices;
  auto carry = [&](weights::Carried carried) {
    for (const weights::CarriedFile& file : carried.files)
      saving.carried.emplace_back(std::string(kSource) + file.name, file.path);
    std::move(carried.notices.begin(), carried.notices.end(), std::back_inserter(notices));
  };
  if (!config.empty()) saving.carried.emplace_back("config.json", config);
  if (from != nullptr) {
    for (const checkpoint::FileRecord& file : from->meta().files)
      if (file.name.rfind(kSource, 0) == 0)
        saving.carried.emplace_back(file.name, from->folder() / file.name);
    for (const checkpoint::TensorRecord& tensor : from->meta().tensors)
      if (tensor.state.empty()) saving.export_dtypes.emplace_back(tensor.name, tensor.export_dtype);
  } else if (!pretrained.empty()) {
    carry(weights::carried_files(pretrained));
    weights::WeightFolder source(pretrained);
    for (const std::string& name : source.names())
      saving.export_dtypes.emplace_back(name, source.find(name)->dtype);
  }
  // Also for a checkpoint of a program that did not look beside the config yet.
  if (!pretrained.empty() || config.empty() || saving.carried.size() > 1) return notices;
  if (!bytes)
    carry(weights::carried_beside(config.parent_path()));
  else if (std::optional<std::string> notice = weights::tokenizer_of_no_use(config))
    notices.push_back(*notice);
  return notices;
}

}  // namespace meshwright::train
