#include "engine/job/job.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>

#include "engine/config/config.h"
#include "engine/config/sources.h"
#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "engine/models/decoder_family.h"
#include "engine/plugins/registry.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/hash.h"
#include "sdk/base/handed_files.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"
#include "sdk/text/tokenizer/folder.h"

namespace meshwright::plan {

namespace {

namespace fs = std::filesystem;

fs::path absolute_of(const fs::path& path) {
  std::error_code failed;
  return fs::absolute(path, failed).lexically_normal();
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path way = path.lexically_relative(folder);
  return !way.empty() && *way.begin() != "..";
}

// As it is written, or where links lead.
bool comes_with(const fs::path& path, const fs::path& folder) {
  std::error_code failed, ignored;
  const fs::path home = absolute_of(folder), real_home = fs::weakly_canonical(home, failed),
                 real = fs::weakly_canonical(path, ignored);
  return lies_in(path, home) || lies_in(path, real_home) || lies_in(real, real_home) ||
         lies_in(real, home);
}

// A folder of plugins may hold a link to one that comes with the folder.
bool brings_one(const fs::path& place, const fs::path& folder) {
  std::error_code failed;
  for (fs::directory_iterator at(place, failed), end; !failed && at != end; at.increment(failed))
    if (at->path().extension() == ".so" && comes_with(at->path(), folder)) return true;
  return false;
}

bool is_standard(const fs::path& path) {
  static const std::vector<std::pair<std::string, fs::path>> places = loader::Registry({}).places();
  return std::ranges::any_of(places, [&](const auto& place) {
    return path == place.second || path.parent_path() == place.second;
  });
}

}  // namespace

ForeignPlugins foreign_plugins(const config::Source& source, const fs::path& folder, bool trusted,
                               const std::function<void(const std::string&)>& tell) {
  const std::string said_by = (folder / config::kResolvedFile).string();
  const std::vector<std::string> relative = source.relative_plugins();
  if (!trusted && !relative.empty())
    throw Error(ErrorCode::plugin_owner, said_by + " names the plugin " + relative.front() +
                                             " by a relative path: such a folder is data, and "
                                             "nothing that comes with it is run")
        .key("plugins")
        .help("--trust-plugins loads it, where the folder is your own")
        .help(
            "copy it to a folder of MESHWRIGHT_PLUGIN_PATH, and add --set 'plugins.load=[]' "
            "--set 'plugins.path=[]'");
  auto check = [&](const fs::path& path, const char* key, bool inside) {
    if (!trusted && inside)
      throw Error(ErrorCode::plugin_owner,
                  said_by + " names " + path.string() + " in " + key +
                      ", which comes with the folder: such a folder is data, and nothing that "
                      "comes with it is run")
          .key(key)
          .help("--trust-plugins loads it, where the folder is your own")
          .help("move it to a place of yours, and add --set '" + std::string(key) + "=[\"" +
                (std::string(key) == "plugins.load" ? "/path/to/" + path.filename().string()
                                                    : "/path/to/plugins") +
                "\"]'");
    if (!is_standard(path))
      tell(said_by + " names " + path.string() + " in " + key +
           ": what is there is loaded, and runs as you");
  };
  ForeignPlugins out{source.plugin_files(), source.plugin_folders(), source.plugin_file_origins()};
  for (const fs::path& file : out.files) check(file, "plugins.load", comes_with(file, folder));
  for (const fs::path& place : out.folders)
    check(place, "plugins.path", comes_with(place, folder) || brings_one(place, folder));
  return out;
}

namespace {

config::StrategySchema schema_of(const loader::StrategyInfo& info) {
  return {info.name, info.aliases, info.schema};
}

// The strategy's own rules. An option whose value was refused stands at its default here, so what a
// rule says about it is left out: all else is true whatever that value becomes.
void check_rules(const loader::LoadedStrategy& strategy, const StrategyConfig& config,
                 Diagnostics& diagnostics) {
  std::set<std::string, std::less<>> refused;
  for (const Error& error : diagnostics.errors())
    for (std::string& key : error.keys()) refused.insert(std::move(key));
  Diagnostics found(std::move(refused));
  try {
    strategy.strategy->validate(config, found);
  } catch (const Error& error) {  // must not hide what was found before
    diagnostics.add(error);
  }
  for (const Error& error : found.errors()) diagnostics.add(error);
  for (const std::string& text : found.notices()) diagnostics.notice(text);
  for (const std::string& text : found.warnings()) diagnostics.warning(text);
}

// The model family's own rules, once its options are right.
void check_model_rules(const Job& job, Diagnostics& diagnostics) {
  const std::optional<JobModel> model = model_of(job);
  if (!model || !diagnostics.ok()) return;
  Diagnostics found;
  try {
    model->family->validate(model->request, found);
  } catch (const Error& error) {
    found.add(error);
  }
  for (const Error& error : found.errors()) diagnostics.add(config::placed(error, job.config));
  for (const std::string& text : found.notices()) diagnostics.notice(text);
  for (const std::string& text : found.warnings()) diagnostics.warning(text);
}

// Else a job that should run a bundled strategy would run another one of that name.
void tell_hidden(const loader::Registry& registry, const loader::LoadedStrategy& strategy,
                 Diagnostics& diagnostics) {
  const loader::LoadedPlugin& plugin = *strategy.plugin;
  for (const std::filesystem::path& file : registry.hidden_by(strategy))
    diagnostics.warning("the strategy " + strategy.info->name + " is that of " + plugin.name + " " +
                            plugin.version + " (" + plugin.path.string() + ", " + plugin.place +
                            "); it hides the one of " + file.string(),
                        {"distributed.strategy"});
}

// The plugins of [model] and of the data, and the tables of all plugins of these sorts where the
// file has some that may be theirs. False after an error.
bool find_components(const config::Source& source, Job& job,
                     std::vector<config::PluginSchemas::Component>& schemas,
                     Diagnostics& diagnostics) {
  bool found = true;
  auto add = [&](OptionSchema schema, const char* table, bool active) {
    schema.table = std::string(table) + schema.table.substr(schema.table.find('.'));
    if (std::ranges::none_of(schemas,
                             [&](const auto& one) { return one.schema.table == schema.table; }))
      schemas.push_back({std::move(schema), active});
  };
  auto find = [&](const char* table, auto& into, auto finder) {
    const std::string name = source.component(table);
    if (name.empty()) return;
    try {
      into = ((*job.registry).*finder)(name, std::string(table) + ".plugin");
      add(into->info->schema, table, true);
    } catch (Error& error) {
      if (error.key().empty()) error.key(std::string(table) + ".plugin");
      diagnostics.add(error.at(source.component_origin(table)));
      found = false;
    }
  };
  find("model", job.model, &loader::Registry::find_model);
  find("dataset", job.dataset, &loader::Registry::find_dataset);
  find("validation_dataset", job.validation_dataset, &loader::Registry::find_dataset);
  for (const char* table : {"dataset", "validation_dataset"})
    for (const auto& [name, origin] : config::source_plugins(source, table)) {
      const std::string key = config::sources_of(table) + ".plugin";
      try {
        add(job.registry->find_dataset(name, key).info->schema, table, true);
      } catch (Error& error) {
        if (error.key().empty()) error.key(key);
        diagnostics.add(error.at(origin));
        found = false;
      }
    }
  const std::vector<std::string> tables = source.component_tables();
  if (std::ranges::all_of(tables, [&](const std::string& table) {
        return std::ranges::any_of(schemas,
                                   [&](const auto& one) { return one.schema.table == table; });
      }))
    return found;
  for (const loader::Listing& listing : job.registry->list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::ComponentInfo& info : listing.plugin->models)
      add(info.schema, "model", false);
    for (const char* table : {"dataset", "validation_dataset"})
      for (const loader::ComponentInfo& info : listing.plugin->datasets)
        add(info.schema, table, false);
  }
  return found;
}

// Bytes are ids of any vocabulary: beside the ids of a tokenizer nothing would refuse them.
void refuse_bytes_beside_tokens(const config::Config& config, Diagnostics& diagnostics) {
  if (!diagnostics.errors().empty()) return;
  struct Text {
    std::string key, name;
    Options options;
  };
  bool tokens = false;
  std::vector<Text> bytes;
  for (const std::string table : {"dataset", "validation_dataset"}) {
    const std::vector<config::NamedSource> sources = config::named_sources(config, table);
    auto look = [&](const std::string& key, const std::string& name, const Options& options) {
      if (options.is_set("plugin") || options.get_string("kind") != "text") return;
      if (!config::component_of(options).empty())
        tokens = tokens || table == "dataset";
      else if (!options.is_set("tokenizer"))
        bytes.push_back({key + ".tokenizer", name, options});
    };
    if (sources.empty() && config.table(table).is_set("path"))
      look(table, "[" + table + "]", config.table(table));
    for (const config::NamedSource& one : sources)
      look(config::sources_of(table), to_toml(one.name), one.options);
  }
  if (!tokens) return;
  for (const Text& one : bytes)
    diagnostics.add(Error(ErrorCode::bad_dataset,
                          one.name + " is text without a tokenizer, whose bytes would be read, "
                                     "beside text that a tokenizer reads")
                        .key(one.key)
                        .at(one.options.origin("path"))
                        .help("set dataset.tokenizer to the folder of the tokenizer, for all texts")
                        .help("set tokenizer = \"bytes\" there, if bytes are meant"));
}

// Writes down whose tokens texts become: a run that goes on is told where that has changed.
void take_tokenizers(const config::Source& source, config::Config& config,
                     Diagnostics& diagnostics) {
  const config::ModelPath model = config::language_folder(config.table("model"));
  const bool has_one = !model.path.empty() && tokenizer::tokenizer_file(model.path);
  for (const std::string table : {"dataset", "validation_dataset"}) {
    Options& data = config.tables.at(table);
    const std::string folder = source.tokenizer(table.c_str());
    if (!folder.empty() && !data.is_set("tokenizer"))
      data.set("tokenizer", folder, config.table("model").origin(model.key));
    if (!folder.empty() && data.is_set("path") && data.get_bool("packing"))
      diagnostics.add(
          Error(ErrorCode::conflict, table + ".packing = true is of streams of tokens and their "
                                             "document_end, but texts know their documents")
              .key(table + ".packing")
              .at(data.origin("packing"))
              .help("set " + table + ".packing = false and " + table +
                    ".text.attention = \"document\""));
    // A folder of adapters names its model only now.
    if (folder.empty() && has_one && config::reads_bytes(config, table) &&
        config::names_data(config, table) && !data.is_set("tokenizer") &&
        !config.table("dataset").is_set("tokenizer"))
      diagnostics.add(
          Error(ErrorCode::bad_dataset, table + ".kind = \"text\" feeds bytes, but " + model.path +
                                            " has a tokenizer, whose ids its model knows")
              .key(table + ".tokenizer")
              .at(data.origin("kind"))
              .help("set " + table + ".tokenizer = " + to_toml(OptionValue(model.path)))
              .help("set " + table + ".tokenizer = \"bytes\""));
  }
  refuse_bytes_beside_tokens(config, diagnostics);
}

}  // namespace

std::optional<Job> load_job(const config::LoadOptions& options, Diagnostics& diagnostics) {
  return load_job(config::Source::load(options, diagnostics), diagnostics);
}

std::optional<Job> load_job(const config::Source& source, Diagnostics& diagnostics) {
  for (const Error& error : diagnostics.errors())
    if (error.code() == ErrorCode::file_unreadable || error.code() == ErrorCode::toml_syntax)
      return std::nullopt;
  Job job;
  loader::SearchPath search;
  search.files = source.plugin_files();
  search.folders = source.plugin_folders();
  job.registry = std::make_unique<loader::Registry>(search);
  bool found = true;
  // What [plugins] load names was asked for by name, so each of its mistakes is told, at its own
  // place.
  std::vector<Origin> origins = source.plugin_file_origins();
  for (size_t i = 0; i < search.files.size(); ++i) try {
      job.registry->load_named(search.files[i]);
    } catch (Error& error) {
      diagnostics.add(error.key("plugins.load").at(origins[i]));
      found = false;
    }
  if (found) try {
      job.strategy = job.registry->find(source.strategy());
      job.schemas.push_back(schema_of(*job.strategy.info));
      tell_hidden(*job.registry, job.strategy, diagnostics);
    } catch (Error& error) {
      if (error.key().empty()) error.key("distributed.strategy");
      diagnostics.add(error.at(source.strategy_origin()));
      found = false;
    }
  // Other strategies matter only where the file has tables, or keys in the old flat form, that may
  // be theirs.
  auto own_table = [&](const std::string& table) {
    return found && job.strategy.info->schema.table == "distributed." + table;
  };
  std::vector<std::string> tables = source.strategy_tables(), keys = source.foreign_keys();
  if (std::ranges::any_of(tables, [&](const std::string& table) { return !own_table(table); }) ||
      std::ranges::any_of(keys, [&](const std::string& key) {
        return !found || job.strategy.info->schema.find(key) == nullptr;
      })) {
    for (const loader::Listing& listing : job.registry->list()) {
      if (listing.plugin == nullptr) continue;
      for (const loader::StrategyInfo& info : listing.plugin->strategies)
        if (std::ranges::none_of(job.schemas,
                                 [&](const auto& s) { return s.strategy == info.name; }))
          job.schemas.push_back(schema_of(info));
    }
  }
  std::vector<config::PluginSchemas::Component> components;
  const bool all_found = find_components(source, job, components, diagnostics) && found;
  job.config = config::resolve(source, {job.schemas, std::move(components)},
                               found ? job.strategy.info->name : std::string(), diagnostics);
  if (!all_found) return std::nullopt;
  take_from_adapter_folder(job.config, diagnostics);
  take_tokenizers(source, job.config, diagnostics);
  check_rules(job.strategy, job.config.strategy_config(job.schemas.front()), diagnostics);
  check_model_rules(job, diagnostics);
  return job;
}

int64_t world_size_from_environment() {
  const char* text = std::getenv("WORLD_SIZE");
  if (text == nullptr || *text == '\0') return 1;
  const std::optional<int64_t> size = text::to_number(text);
  if (!size || *size < 1)
    throw Error(ErrorCode::bad_environment,
                "WORLD_SIZE = \"" + std::string(text) + "\" is not a number of ranks")
        .help("unset WORLD_SIZE, or set it to a positive integer");
  return *size;
}

std::string JobModel::name() const {
  return request.config.empty() ? "the model family " + key
                                : base::model_file(request.config).string();
}

void say_what_is_seen(ModelOutline& outline, const TpPlanChoice& choice) {
  for (const auto& [pattern, word] : choice.patterns)
    if (word == kOfHeads || word == kOfStream) outline.own_tp_plan.emplace_back(pattern, word);
}

ModelOutline JobModel::outline(const config::Config& config) const {
  try {
    std::error_code failed;
    if (plugin != nullptr && !request.config.empty() &&
        base::handed_config(request.config) == nullptr &&
        !std::filesystem::exists(request.config, failed))
      throw Error(ErrorCode::file_unreadable,
                  "cannot read " + request.config + ": " +
                      (failed ? failed.message() : std::string("it does not exist")));
    ModelOutline out = family->outline(request);
    say_what_is_seen(out, config.shared.tp_plan);
    return out;
  } catch (const Error& error) {
    throw located(error, config);
  }
}

Error JobModel::located(Error error, const config::Config& config) const {
  // A plugin may name an option of its own.
  if (plugin != nullptr && !error.key().empty()) return error;
  const std::string full = "model." + key;
  const Origin written = config.table("model").origin(key);
  if (std::error_code failed; error.code() == ErrorCode::file_unreadable &&
                              !std::filesystem::exists(request.config, failed) && !failed)
    for (const std::string& help : base::relative_path_help(full, request.config, written.file))
      error.help(help);
  return error.key(full).at(written);
}

std::optional<JobModel> model_of(const Job& job) {
  const Options& table = job.config.table("model");
  auto [path, key] = config::model_path(table);
  if (path.empty() && !job.model) return std::nullopt;
  JobModel out;
  out.request.config = path;
  out.request.storage = table.find_dtype("torch_dtype").value_or(DType::float32);
  out.request.sizes = job.config.shared.sizes;
  out.key = path.empty() ? "plugin" : key;
  if (job.model) {
    out.family = job.model->made;
    out.plugin = job.model->plugin;
    out.request.options = job.config.table(job.model->info->schema.table);
  } else {
    out.family = std::make_shared<outlines::HubFamily>();
  }
  return out;
}

std::string model_settings(const Job& job) {
  if (!job.model) return adapter_settings(job.config);
  std::string out = "model.plugin=" + to_toml(job.model->info->name) + "\n";
  const std::string& table = job.model->info->schema.table;
  const Options& options = job.config.table(table);
  for (const meshwright_option* option : options.schema().options)
    if (options.is_given(option->name))
      out += table + "." + option->name + "=" + to_toml(options.value(option->name)) + "\n";
  return out + adapter_settings(job.config);
}

std::string steps_an_epoch(int64_t samples, int64_t batch) {
  const int64_t tenth = samples % batch * 10 / batch;
  return report::human_count(samples / batch) + (tenth > 0 ? "." + std::to_string(tenth) : "") +
         " steps of " + std::to_string(batch);
}

int64_t steps_of_epochs(int64_t epochs, int64_t samples, int64_t batch, const Trained& trained) {
  int64_t all = 0;
  if (__builtin_mul_overflow(epochs, samples, &all))
    throw Error(ErrorCode::out_of_range, "step_scheduler.epochs = " + std::to_string(epochs) +
                                             " of " + std::to_string(samples) +
                                             " samples is a run without an end")
        .key("step_scheduler.epochs")
        .help("set step_scheduler.max_steps = 200 and step_scheduler.epochs = \"none\"");
  const int64_t left = std::max<int64_t>(0, all - trained.samples);
  return trained.steps + left / batch + (left % batch > 0 ? 1 : 0);
}

void count_steps(const Job& job, bool assumed_world, JobPlan& plan) {
  const Options& table = job.config.table("step_scheduler");
  plan.max_steps = table.find_int("max_steps");
  if (!table.is_set("epochs") || !job.samples) return;
  const int64_t epochs = table.get_int("epochs"),
                batch = assumed_world
                            ? table.get_int("global_batch_size")
                            : step_samples(plan.workload) * std::max<int64_t>(plan.mesh.dp, 1);
  const Trained trained = job.trained.value_or(Trained());
  plan.max_steps = steps_of_epochs(epochs, *job.samples, batch, trained);
  plan.notices.push_back("step_scheduler.epochs = " + std::to_string(epochs) + " is " +
                         text::counted(*plan.max_steps, "step") +
                         (trained.steps > 0
                              ? ", of which " + report::human_count(trained.steps) + " have read " +
                                    text::counted(trained.samples, "sample")
                              : "") +
                         ": an epoch is " + text::counted(*job.samples, "sample") + ", " +
                         steps_an_epoch(*job.samples, batch));
}

}  // namespace meshwright::plan

namespace meshwright::data {

DatasetInspector* inspector_of(const DatasetConfig& config) {
  if (!config.plugin) return nullptr;
  return static_cast<DatasetInspector*>(config.plugin->kind->extension(kDatasetInspector));
}

std::optional<int64_t> documents_in(const std::vector<std::pair<std::string, int64_t>>& numbers) {
  for (const auto& [name, value] : numbers)
    if (name == "used") return value;
  return std::nullopt;
}

double documents_a_step(int64_t documents, int64_t samples, int64_t batch) {
  return static_cast<double>(documents) * static_cast<double>(batch) / static_cast<double>(samples);
}

std::string tell_steps(int64_t samples, int64_t batch, std::optional<int64_t> documents) {
  std::string out =
      "an epoch is " + plan::steps_an_epoch(samples, batch) + (batch == 1 ? " sample" : " samples");
  if (!documents) return out;
  return out +
         text::format(", %.1f documents a step", documents_a_step(*documents, samples, batch));
}

namespace {

// `options`: those of the plugin; `given`: what the table says itself.
void add_plugin(const plan::Job& job, const loader::LoadedDataset& found, const Options& options,
                const Options& given, DatasetConfig& out) {
  out.plugin = PluginData{.name = found.info->name,
                          .kind = found.made,
                          .options = options,
                          .pretrained = config::language_folder(job.config.table("model")).path};
  if (out.of_plugged_kind() && given.is_set("tokenizer"))
    out.plugin->pretrained = given.get_string("tokenizer");
  out.document_end.reset();
}

// Each with a seed of its own: synthetic tokens of two would else be the same.
DatasetConfig source_config(const plan::Job& job, const std::string& table,
                            const config::NamedSource& source, int64_t vocab_size, uint64_t seed) {
  DatasetConfig out =
      dataset_config(source.options, vocab_size, base::mix64(seed ^ base::fnv1a(source.name)));
  if (const std::string plugin = config::component_of(source.options); !plugin.empty()) {
    const loader::LoadedDataset found = job.registry->find_dataset(plugin, table + ".plugin");
    // Named by an alias it has the table of all sources.
    add_plugin(job, found,
               source.plugin ? *source.plugin : job.config.table(table + "." + found.info->name),
               source.options, out);
  }
  out.table = config::sources_of(table);
  out.name = source.name;
  out.place = out.path.empty() ? source.place : source.options.origin("path");
  out.share = {source.weight, source.epochs, source.schedule};
  return out;
}

}  // namespace

DatasetConfig dataset_config(const plan::Job& job, const std::string& table, int64_t vocab_size,
                             uint64_t seed) {
  const Options& options = job.config.table(table);
  const std::vector<config::NamedSource> sources = config::named_sources(job.config, table);
  if (!sources.empty()) {
    DatasetConfig out{.table = table,
                      .seq_len = options.get_int("seq_len"),
                      .vocab_size = vocab_size,
                      .seed = seed,
                      .shuffle = options.get_bool("shuffle")};
    for (const config::NamedSource& source : sources)
      out.sources.push_back(source_config(job, table, source, vocab_size, seed));
    return out;
  }
  DatasetConfig out = dataset_config(options, vocab_size, seed);
  if (const std::optional<loader::LoadedDataset>& found =
          table == "dataset" ? job.dataset : job.validation_dataset)
    add_plugin(job, *found, job.config.table(table + "." + found->info->name), options, out);
  return out;
}

std::vector<int64_t> read_by_run(const plan::Job& job, const Mix& mix) {
  const Options& length = job.config.table("step_scheduler");
  const int64_t batch = length.get_int("global_batch_size"),
                epochs = length.find_int("epochs").value_or(0),
                steps = epochs > 0 ? plan::steps_of_epochs(epochs, mix.samples(), batch)
                                   : length.find_int("max_steps").value_or(0);
  int64_t samples = 0;
  if (__builtin_mul_overflow(steps, batch, &samples))
    throw Error(ErrorCode::out_of_range, "the run would read more samples than there are numbers")
        .key("step_scheduler.max_steps")
        .help("set step_scheduler.max_steps = 200");
  return mix.order(batch).read_before(samples);
}

std::vector<std::string> tell_mix(const plan::Job& job) {
  if (config::named_sources(job.config, "dataset").empty()) return {};
  const DatasetConfig config =
      dataset_config(job, "dataset", /*vocab_size=*/0,
                     static_cast<uint64_t>(job.config.table("run").get_int("seed")));
  std::string why = "a plugin prepares some";
  if (std::ranges::none_of(config.sources, [](const auto& one) { return one.plugin.has_value(); }))
    try {
      const std::unique_ptr<Mix> mix = open_mix(config);
      return lines_of(*mix, read_by_run(job, *mix));
    } catch (const Error& error) {
      why = error.message();
    }
  std::vector<std::string> out;
  for (const DatasetConfig& one : config.sources)
    out.push_back(one.name + ": " +
                  (one.share.epochs
                       ? "epochs " + text::short_number(*one.share.epochs)
                       : "weight " + text::short_number(one.share.weight.value_or(1))) +
                  "; its samples are not known here: " + why);
  return out;
}

bool counts_epochs(const plan::Job& job) {
  return job.config.table("step_scheduler").is_set("epochs") &&
         config::names_data(job.config, "dataset");
}

void count_samples(plan::Job& job) {
  if (!counts_epochs(job)) return;
  // Ids are held against the vocabulary when they are read, by whoever knows the model.
  const DatasetConfig config =
      dataset_config(job, "dataset", /*vocab_size=*/0,
                     static_cast<uint64_t>(job.config.table("run").get_int("seed")));
  prepare_data(config);
  job.samples = open_samples(config)->samples();
}

}  // namespace meshwright::data
