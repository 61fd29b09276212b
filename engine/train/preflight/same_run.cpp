#include "engine/train/preflight/same_run.h"

#include <algorithm>
#include <utility>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/config/describe.h"
#include "engine/config/sources.h"
#include "engine/models/config_changes.h"
#include "engine/train/preflight/source.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/words.h"

namespace meshwright::before {

namespace fs = std::filesystem;

namespace {

bool holds_file(const checkpoint::Checkpoint& from, std::string_view name) {
  return std::ranges::any_of(from.meta().files,
                             [&](const checkpoint::FileRecord& file) { return file.name == name; });
}

Error other_model(const checkpoint::Checkpoint& from, const std::string& what) {
  return Error(ErrorCode::checkpoint_mismatch,
               from.folder().string() + ": it is of a model that computes otherwise: " + what);
}
// The ways out that each refusal has.
Error with_ways(Error error, const checkpoint::Checkpoint& from) {
  return error.help("to train its weights as another model: " + way_by_export(from))
      .help("set run.name to another name to train this job beside it")
      .help(kStartAfresh);
}

std::string value_text(const std::string& json) { return json.empty() ? "not set" : json; }

// Of a list of tables without what its tables leave unset.
std::string short_value(std::string value) {
  if (!value.starts_with("[{")) return value_text(value);
  constexpr std::string_view kNone = " = \"none\"";
  for (size_t end; (end = value.find(kNone)) != std::string::npos;) {
    const size_t begin = value.find_last_of("{,", end) + 1;
    end += kNone.size();
    if (value[begin - 1] == ',')
      value.erase(begin - 1, end - begin + 1);
    else
      value.erase(begin, std::min(value.find_first_not_of(", ", end), value.size()) - begin);
  }
  return value;
}

void check_config(checkpoint::Checkpoint& from, const plan::Job& job, const plan::JobModel& model,
                  const std::string& config_text) {
  const std::string file = "config.json", before = from.read_file(file);
  if (before == config_text) return;
  const std::vector<outlines::ConfigChange> changes =
      model.plugin == nullptr ? outlines::changes_of_model(before, config_text)
                              : outlines::changes_of_file(before, config_text);
  if (changes.empty()) return;
  std::vector<std::string> what;
  for (const outlines::ConfigChange& one : changes)
    what.push_back(one.field + " = " + value_text(one.now) + " (was " + value_text(one.before) +
                   ")");
  Error error = other_model(from, model.name() + " has " + text::first_few(what, 8));
  error.key("model." + model.key).at(job.config.table("model").origin(model.key));
  for (size_t i = 0; i < std::min<size_t>(changes.size(), 3); ++i)
    error.help(changes[i].before.empty()
                   ? "leave out \"" + changes[i].field + "\" in " + model.name()
                   : "set " + changes[i].field + " to " + changes[i].before + " in " +
                         model.name());
  error.help("the file that it was trained with: " + (from.folder() / file).string());
  throw with_ways(std::move(error), from);
}

// Each option of the family, defaults included, as a line of TOML.
std::string options_text(const std::string& table, const Options& options) {
  std::string out;
  for (const meshwright_option* option : options.schema().options)
    if (options.is_set(option->name))
      out += table + "." + option->name + " = " + to_toml(options.value(option->name)) + "\n";
  return out;
}

// A line each, as plan::model_settings() writes them; of [model] alone. What stands later wins.
std::vector<config::Setting> model_lines(const std::string& text) {
  std::vector<config::Setting> out;
  Diagnostics ignored;
  for (const std::string& line : text::split_names(text.c_str(), '\n'))
    if (line.starts_with("model."))
      for (config::Setting& one : config::settings_of(line, "", ignored)) {
        std::erase_if(out, [&](const config::Setting& other) { return other.key == one.key; });
        out.push_back(std::move(one));
      }
  return out;
}

void check_family(checkpoint::Checkpoint& from, const plan::Job& job, const plan::JobModel& model) {
  const std::string name(generate::kModelSettings);
  const std::string given = holds_file(from, name) ? from.read_file(name) : "";
  const std::vector<config::Setting> lines = model_lines(given);
  const auto named = std::ranges::find(lines, "model.plugin", &config::Setting::key);
  const std::string was = named == lines.end() ? "" : named->value,
                    is = job.model ? to_toml(job.model->info->name) : "";
  auto refuse = [&](const std::string& key, const std::string& then, const std::string& now) {
    Error error =
        other_model(from, key + " is " + value_text(now) + " (was " + value_text(then) + ")");
    error.key(key).at(job.config.table("model").origin(model.key));
    error.help(then.empty() ? "leave out " + key : "set " + key + " = " + then);
    throw with_ways(std::move(error), from);
  };
  if (was != is) refuse("model.plugin", was, is);
  if (!job.model) return;
  const OptionSchema& schema = job.model->info->schema;
  const std::string& table = schema.table;
  // Those of a family that has lost an option are nobody's.
  auto known = [&](const config::Setting& one) {
    return one.key.starts_with(table + ".") && schema.find(one.key.substr(table.size() + 1));
  };
  std::vector<config::Setting> then = model_lines(options_text(table, Options(schema)) + given);
  std::erase_if(then, [&](const config::Setting& one) { return !known(one); });
  for (const config::Difference& one :
       config::differences({then, model_lines(options_text(table, job.config.table(table)))}))
    refuse(one.key, one.values.front(), one.values.back());
}

}  // namespace

void refuse_other_model(checkpoint::Checkpoint& from, const plan::Job& job,
                        const plan::JobModel& model, const std::string& config_text) {
  // One that a program of its own saved carries no description of its model.
  const bool described =
      holds_file(from, "config.json") || holds_file(from, generate::kModelSettings);
  if (!described) return;
  check_family(from, job, model);
  if (holds_file(from, "config.json") && !config_text.empty())
    check_config(from, job, model, config_text);
}

namespace {

// Tables that are left out of the configuration as it was resolved, so that train takes the file
// again.
std::vector<std::string> tables_not_given(const plan::Job& job) {
  std::vector<std::string> without;
  if (job.config.shared.sizes.cp <= 1) without.emplace_back("distributed.context");
  if (!job.config.shared.pipeline_given) without.emplace_back("distributed.pipeline");
  for (const char* table : {"distributed.moe", "distributed.moe.mp_policy"}) {
    const Options& moe = job.config.table(table);
    auto given = [&](const meshwright_option* option) { return moe.is_given(option->name); };
    if (std::ranges::none_of(moe.schema().options, given)) without.emplace_back(table);
  }
  return without;
}

// Paths of [plugins] as they were found, from the file's folder or from where --set was typed: the
// run's folder is another one.
void make_absolute(const fs::path& file, Options& plugins) {
  for (const char* key : {"load", "path"}) {
    if (!plugins.is_given(key)) continue;
    const Origin origin = plugins.origin(key);
    const fs::path base =
        origin.source == Origin::Source::command_line ? fs::path() : file.parent_path();
    std::vector<std::string> paths = plugins.get_strings(key);
    for (std::string& path : paths)
      if (!path.empty()) path = fs::absolute(base / path).lexically_normal().string();
    plugins.set(key, OptionValue(paths), origin);
  }
}

}  // namespace

std::string resolved_toml(const plan::Job& job) {
  config::Config config = job.config;
  make_absolute(config.file, config.tables.at("plugins"));
  return config::show_toml(config, /*with_origins=*/true, tables_not_given(job));
}

static std::optional<std::vector<config::Difference>> changed_from(const std::string& text,
                                                                   const std::string& file,
                                                                   const plan::Job& job) {
  Diagnostics ignored;  // of a file that somebody has edited, or that is not there
  const std::vector<config::Setting> before = config::settings_of(text, file, ignored);
  if (before.empty()) return std::nullopt;
  return config::with_effect(
      config::differences({before, config::settings_of(resolved_toml(job), file, ignored)}),
      job.config);
}

std::optional<std::vector<config::Difference>> settings_changed(const std::filesystem::path& folder,
                                                                const plan::Job& job) {
  const std::string file = (folder / config::kResolvedFile).string();
  return changed_from(base::read_file(file), file, job);
}

// As the checkpoint was trained; one of before does not say, the folder around the checkpoints may.
static std::optional<std::vector<config::Difference>> changed_since(checkpoint::Checkpoint& from,
                                                                    const plan::Job& job) {
  const std::string name(config::kResolvedFile);
  if (!holds_file(from, name))
    return settings_changed(fs::absolute(from.folder()).parent_path().parent_path(), job);
  return changed_from(from.read_file(name), (from.folder() / name).string(), job);
}

bool begins_from_the_same(checkpoint::Checkpoint& from, const plan::Job& job) {
  const std::optional<std::vector<config::Difference>> changed = changed_since(from, job);
  return changed && std::ranges::none_of(*changed, [](const config::Difference& one) {
           return one.key == "model.pretrained";
         });
}

std::string changes_text(const std::vector<config::Difference>& changes) {
  std::vector<std::string> out;
  for (const config::Difference& one : changes)
    out.push_back(one.key + " = " + short_value(one.values[1]) + " (was " +
                  short_value(one.values[0]) + ")");
  return text::first_few(out, 8);
}

namespace {

// How data is read and kept changes no token.
bool only_reads(const std::string& key) {
  return key == "dataset.workers" || key == "dataset.verify" || key.ends_with(".cache") ||
         key.ends_with(".threads");
}

bool is_given(const plan::Job& job, const std::string& key) {
  const size_t dot = key.rfind('.');
  const auto& tables = job.config.tables;
  const auto table = dot == std::string::npos ? tables.end() : tables.find(key.substr(0, dot));
  return table == tables.end() || table->second.schema().find(key.substr(dot + 1)) == nullptr ||
         table->second.is_given(key.substr(dot + 1));
}

// Whether a run with another value of it would have ended with another model, as far as the engine
// may say so: layouts and their strategies train alike.
bool decides_numbers(const std::string& key) {
  static constexpr std::string_view kOthers[] = {
      "run.name",
      "run.dir",
      "run.threads",
      "run.deterministic",
      "run.stop_on_nonfinite",
      "step_scheduler.max_steps",
      "step_scheduler.epochs",
      "step_scheduler.local_batch_size",
      "model.config",  // refuse_other_model() has judged it
      "dist_env.",
      "distributed.",
      "dataset.",
      "validation_dataset.",
      "checkpoint.",
      "report.",
      "plugins."};
  if (key.starts_with("distributed.mp_policy.") || key == "distributed.autocast_dtype") return true;
  return std::ranges::none_of(
      kOthers, [&](auto one) { return one.ends_with('.') ? key.starts_with(one) : key == one; });
}

// Whose tokens rows and texts become, each with the key that says so; none: of bytes and of ids.
struct TokenizerInUse {
  std::string key, folder;
};
std::vector<TokenizerInUse> tokenizers_in_use(const plan::Job& job) {
  constexpr const char *kRows = "jsonl", *kTable = "dataset";
  std::vector<TokenizerInUse> out;
  // `rows`: what its reader is told, where that is rows'.
  auto look = [&](const Options& data, const Options* rows, const std::string& key) {
    const std::string component = config::component_of(data);
    if (component == config::kTextComponent && !data.is_set("plugin"))
      out.push_back({key + ".tokenizer", data.get_string("tokenizer")});
    if (component != kRows) return;
    const bool own = rows != nullptr && rows->is_set("tokenizer");
    out.push_back({(rows != nullptr ? rows->schema().table : std::string(kTable) + "." + kRows) +
                       ".tokenizer",
                   own ? rows->get_string("tokenizer")
                       : config::language_folder(job.config.table("model")).path});
  };
  const std::vector<Options>& mix = job.config.list(config::kMixTable);
  const std::vector<config::NamedSource> sources = config::named_sources(job.config, kTable);
  if (sources.empty()) {
    const auto rows = job.config.tables.find(std::string(kTable) + "." + kRows);
    look(job.config.table(kTable), rows == job.config.tables.end() ? nullptr : &rows->second,
         kTable);
  }
  for (size_t i = 0; i < sources.size(); ++i)
    look(sources[i].options, sources[i].plugin ? &*sources[i].plugin : nullptr,
         mix[i].is_set("tokenizer") ? config::kMixTable : kTable);
  return out;
}

// A file of the tokenizer that rows or texts are read by, which is another one than the checkpoint
// carries, and the key of that tokenizer; nothing: none is.
std::optional<std::pair<std::string, std::string>> other_tokenizer_file(
    checkpoint::Checkpoint& from, const plan::Job& job) {
  constexpr std::string_view kCarried = "source/";
  for (const auto& [key, folder] : tokenizers_in_use(job))
    for (const checkpoint::FileRecord& file : from.meta().files) {
      if (!file.name.starts_with(kCarried)) continue;
      const std::string name = file.name.substr(kCarried.size());
      const fs::path now = fs::path(folder) / name;
      std::error_code failed;
      if (weights::is_of_tokenizer(name) && fs::is_regular_file(now, failed) &&
          base::read_file(now) != from.read_file(file.name))
        return std::pair(now.string(), key);
    }
  return std::nullopt;
}

// Of other samples: which settings are others than those of the checkpoint's run.
Error other_data(checkpoint::Checkpoint& from, const plan::Job& job) {
  const Options& dataset = job.config.table("dataset");
  const std::string named = dataset.is_set("plugin") ? "dataset.plugin" : "dataset.path";
  const std::string what =
      from.folder().string() + ": it was trained on other data than " + named + " now names";
  std::optional<std::vector<config::Difference>> changed = changed_since(from, job);
  if (!changed)
    return Error(ErrorCode::checkpoint_mismatch, what)
        .key(named)
        .help(std::string("compare [dataset]") +
              (dataset.is_set("plugin") ? " and its plugin's table" : "") +
              " with what the run had: what decides about a token or its place must be the same");
  std::erase_if(*changed, [](const config::Difference& one) {
    return (!one.key.starts_with("dataset.") && one.key != "model.pretrained") ||
           only_reads(one.key);
  });
  if (const auto other = changed->empty() ? other_tokenizer_file(from, job) : std::nullopt) {
    const auto& [file, key] = *other;
    return Error(ErrorCode::checkpoint_mismatch,
                 from.folder().string() + ": it was trained with another tokenizer: " + file +
                     " has changed since")
        .key(key)
        .help("set " + key + " = \"" + (from.folder() / "source").string() +
              "\", the tokenizer that the run learnt with");
  }
  if (changed->empty())
    return Error(ErrorCode::checkpoint_mismatch, what)
        .key(named)
        .help("the settings of [dataset] are those of the run: the files behind them have changed");
  Error error(ErrorCode::checkpoint_mismatch, what + ": " + changes_text(*changed));
  error.key(changed->front().key);
  for (const config::Difference& one : *changed)
    if (one.key == "dataset.tokenizer" &&
        config::text_of(one.values.front()).value_or("none") == "none")
      error.help("set dataset.tokenizer = \"bytes\", which the run learnt");
    else if (!one.values.front().empty())
      error.help("set " + one.key + " = " + one.values.front());
  return error.help("if that is not all of it, the files behind them have changed");
}

// Weights that were put in place of those the run began from.
void refuse_other_weights(const checkpoint::Checkpoint& from, const plan::Job& job) {
  const std::string folder = job.config.table("model").get_string("pretrained");
  if (from.meta().pretrained.empty() || folder.empty()) return;
  try {
    if (checkpoint::fingerprint_of(weights::WeightFolder(folder)) == from.meta().pretrained) return;
  } catch (const Error&) {
    return;  // weights that are gone ask for nothing else
  }
  throw Error(
      ErrorCode::checkpoint_mismatch,
      from.folder().string() + " is the end of a run from other weights than those in " + folder)
      .key("model.pretrained")
      .help("set run.name to another name to train from them beside it")
      .help(
          "set checkpoint.resume = \"none\" to train afresh from them; what is there is kept under "
          "another name");
}

}  // namespace

void refuse_other_settings(checkpoint::Checkpoint& from, const plan::Job& job) {
  std::vector<config::Difference> changed =
      changed_since(from, job).value_or(std::vector<config::Difference>());
  const bool swapped = std::ranges::any_of(
      changed, [](const config::Difference& one) { return one.key == "distributed.strategy"; });
  // What an option in the strategy's own table does is known to the strategy alone.
  const std::string own_table = job.strategy.info->schema.table + ".";
  std::erase_if(changed, [&](const config::Difference& one) {
    const bool decides = decides_numbers(one.key) || (!swapped && one.key.starts_with(own_table));
    // A key that the program did not have at that time has its default, unless somebody sets it.
    return !decides || (one.values.front().empty() && !is_given(job, one.key)) ||
           (one.key == "model.pretrained" && from.meta().base);  // check_base() has judged it
  });
  if (changed.empty()) return refuse_other_weights(from, job);
  Error error(ErrorCode::checkpoint_mismatch,
              from.folder().string() +
                  " is the end of a run with other settings: " + changes_text(changed));
  error.key(changed.front().key);
  std::error_code failed;
  const bool own = fs::weakly_canonical(from.folder().parent_path().parent_path(), failed) ==
                   fs::weakly_canonical(config::run_folder(job.config.table("run")), failed);
  error.help(own ? "set run.name to another name to train this job beside it"
                 : "to train its weights with them: " + way_by_export(from));
  // What a run may go on with is another model or optimizer of none.
  if (std::ranges::all_of(changed, [](const config::Difference& one) {
        return one.key.starts_with("lr_scheduler.") || one.key == "optimizer.lr";
      })) {
    const std::optional<int64_t> epochs = job.config.table("step_scheduler").find_int("epochs");
    error.help("set step_scheduler." +
               (epochs ? "epochs = " + std::to_string(2 * *epochs)
                       : "max_steps = " + std::to_string(2 * from.meta().step)) +
               " to train on with them");
  }
  throw error.help(
      "set checkpoint.resume = \"none\" to train it afresh with them; what is there is kept under "
      "another name");
}

void refuse_other_optimizer(const checkpoint::Checkpoint& from, const std::string& name) {
  if (from.meta().optimizer == name) return;
  const std::string& then = from.meta().optimizer;
  const bool bundled = then == "adamw" || then == "sgd";
  throw Error(ErrorCode::checkpoint_mismatch, from.folder().string() +
                                                  ": it holds the state of the optimizer " + then +
                                                  ", this job's is " + name)
      .key("optimizer.name")
      .help(bundled && name != "adamw" && name != "sgd"
                ? "set optimizer.name = \"" + then + "\" and leave out Trainer::set_optimizer()"
            : bundled
                ? "set optimizer.name = \"" + then + "\""
                : "go on in a program that gives Trainer::set_optimizer() the optimizer " + then);
}

void refuse_other_adapters(const checkpoint::Checkpoint& from, const plan::Job& job) {
  const int64_t r = job.config.table("lora").get_int("r");
  const bool has = checkpoint::names_adapters(from.meta());
  if (has == (r > 0)) return;
  throw with_ways(
      Error(ErrorCode::checkpoint_mismatch,
            from.folder().string() + (has ? ": it has adapters" : ": it has no adapters") +
                ", this job's lora.r is " + std::to_string(r))
          .key("lora.r"),
      from);
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
  auto hold = [&](const std::string& name, const OptionValue& then, const OptionValue& now) {
    if (then == now) return;
    const std::string key = "lora." + name;
    throw Error(ErrorCode::checkpoint_mismatch,
                from.folder().string() + ": its adapters were trained with " + key + " = " +
                    to_toml(then) + ", this job has " + to_toml(now))
        .key(key)
        .at(lora.origin(name))
        .help("set " + key + " = " + to_toml(then))
        .help("set run.name to another name to train this job beside it");
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

namespace {

// Of a mix, whose weights may be others now: the sources that were read, by name.
std::optional<Error> other_source(const checkpoint::Checkpoint& from,
                                  const data::DataFingerprint& now) {
  for (const checkpoint::MixedSource& source : from.meta().mix->sources) {
    const auto found =
        std::ranges::find(now.sources, source.name, &std::pair<std::string, uint64_t>::first);
    const std::string name = to_toml(source.name);
    const std::string key = std::string(config::kMixTable) + ".name";
    if (found == now.sources.end())
      return Error(ErrorCode::checkpoint_mismatch, from.folder().string() +
                                                       ": it was trained on a mix with " + name +
                                                       ", which no [[dataset.mix]] names now")
          .key(key)
          .help("add it again; schedule = { " +
                std::to_string(std::max<int64_t>(from.meta().step, 1)) + " = 0 } ends reading it");
    if (checkpoint::to_hex(found->second) != source.fingerprint)
      return Error(ErrorCode::checkpoint_mismatch,
                   from.folder().string() + ": it was trained on other data than [[dataset.mix]] " +
                       name + " now names")
          .key(key)
          .help("put back its files and settings, whose names and weight may be others")
          .help("add the data as another [[dataset.mix]] of another name, and keep this one");
  }
  return std::nullopt;
}

}  // namespace

void refuse_other_data(checkpoint::Checkpoint& from, const plan::Job& job,
                       const std::optional<data::DataFingerprint>& fingerprint, int64_t seq_len) {
  const checkpoint::Meta& meta = from.meta();
  if (meta.data_fingerprint.empty())
    return;  // saved by a program of its own, which feeds its own data
  auto refuse_as = [&](Error error) {
    throw error.help("to train its weights on other data: " + way_by_export(from))
        .help(kStartAfresh);
  };
  auto refuse = [&](const std::string& what, const std::string& key, const std::string& value) {
    refuse_as(Error(ErrorCode::checkpoint_mismatch, from.folder().string() + ": " + what)
                  .key(key)
                  .help("set " + key + " = " + value));
  };
  auto was = [](int64_t then, int64_t now) {
    return std::to_string(then) + ", this job's is " + std::to_string(now);
  };
  int64_t seed = job.config.table("run").get_int("seed");
  bool shuffle = job.config.table("dataset").get_bool("shuffle");
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
  if (!fingerprint) return;
  if (meta.mix && !fingerprint->sources.empty()) {
    if (std::optional<Error> error = other_source(from, *fingerprint)) refuse_as(*error);
  } else if (meta.data_fingerprint != checkpoint::to_hex(fingerprint->whole)) {
    refuse_as(other_data(from, job));
  }
}

std::string way_by_export(const checkpoint::Checkpoint& from) {
  return "meshwright checkpoint export " + from.folder().string() +
         (checkpoint::names_adapters(from.meta()) ? " --merged" : "") +
         " --out DIR, then model.pretrained = \"DIR\" under another run.name";
}

}  // namespace meshwright::before
