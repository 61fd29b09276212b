#include "apps/inference/evaluation.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <map>
#include <utility>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/folder.h"
#include "engine/config/config.h"
#include "engine/config/source.h"
#include "engine/config/toml_value.h"
#include "engine/job/job.h"
#include "engine/plugins/registry.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/text/tokenizer/folder.h"

namespace meshwright::evaluate {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTable = "validation_dataset.";

bool is_there(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

std::string quoted(const std::string& text) {
  return boost::json::serialize(boost::json::value(text));  // JSON's escapes are TOML's too
}

using Values = std::map<std::string, std::string>;  // TOML by key

// Whether it is of the table of a plugin that reads data: [dataset.NAME].
bool is_option_of_plugin(const std::string& key) {
  return (key.starts_with("dataset.") || key.starts_with(kTable)) &&
         std::count(key.begin(), key.end(), '.') > 1;
}

// What the run's configuration sets, by key; empty where it cannot be read.
Values settings_of(const fs::path& file) {
  Values out;
  Diagnostics ignored;  // of a file that somebody has edited
  for (config::Setting& setting :
       config::settings_of(base::read_file(file), file.string(), ignored))
    // A plugin may have a choice of that name.
    if (setting.value != "\"none\"" || is_option_of_plugin(setting.key))
      out[setting.key] = std::move(setting.value);
  return out;
}

Values settings_of_run(const Subject& subject) {
  return subject.run_config ? settings_of(*subject.run_config) : Values();
}

std::string value_of(const Values& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? "" : found->second;
}

// "" where it is no text.
std::string text_in(const Values& settings, const std::string& key) {
  return config::text_of(value_of(settings, key)).value_or("");
}

bool sets_here(const Request& request, std::string_view key) {
  return std::any_of(request.sets.begin(), request.sets.end(), [&](const std::string& set) {
    return set.starts_with(std::string(kTable) + std::string(key) + "=");
  });
}

// Whether data are named that the run may not have been validated with.
bool names_other_data(const Request& request) {
  return request.data || sets_here(request, "path") || sets_here(request, "plugin") ||
         sets_here(request, "kind");
}

// Of a file of this name, or files of this pattern.
std::string kind_of(const std::string& path) {
  if (!path.ends_with(".bin")) return "text";
  return is_there(path.substr(0, path.size() - 4) + ".idx") ? "megatron" : "tokens";
}

// Whether the name of a file, a pattern, or those of all files in a folder say that it is JSON.
bool is_rows(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed))
    return path.native().ends_with(".jsonl") || path.native().ends_with(".json");
  bool any = false;
  for (fs::recursive_directory_iterator file(path, failed), end; !failed && file != end;
       file.increment(failed)) {
    if (!file->is_regular_file(failed)) continue;
    if (!is_rows(file->path())) return false;
    any = true;
  }
  return any;
}

bool has_plugin(const Values& run, const std::string& table) {
  return !value_of(run, table + ".plugin").empty();
}

bool validates_texts(const Values& run) {
  const std::string table = "validation_dataset", kind = value_of(run, table + ".kind");
  return !has_plugin(run, table) && kind == "\"text\"" &&
         !(value_of(run, table + ".path").empty() && value_of(run, table + ".set").empty());
}

// How the data of this table are read, for other data of the same form: by their kind, or by a
// plugin with its options.
void read_like(const Values& run, const std::string& table, Values& out) {
  if (has_plugin(run, table)) {
    for (const auto& [key, value] : run)
      if (key == table + ".plugin" || key == table + ".seq_len" ||
          (key.starts_with(table + ".") && is_option_of_plugin(key)))
        out[key.substr(table.size() + 1)] = value;
    return;
  }
  if (const std::string kind = value_of(run, table + ".kind"); kind != "\"mock\"" && !kind.empty())
    out["kind"] = kind;
  for (const char* key : {"dtype", "seq_len", "packing", "document_end", "tokenizer"})
    if (const std::string value = value_of(run, table + "." + key); !value.empty())
      out[key] = value;
  // What a document is, a validation on texts says itself.
  const std::string from = validates_texts(run) ? "validation_dataset" : table,
                    of_texts = from + "." + config::kTextComponent + ".";
  for (const auto& [key, value] : run)
    if (key.starts_with(of_texts)) out[key.substr(from.size() + 1)] = value;
}

// As the run read what it learned from. Rows are read as those that it was validated with where it
// learned from others than rows.
void read_like_run(const Values& run, const Request& request, Values& out) {
  const bool rows = request.data && is_rows(*request.data);
  const std::string table =
      rows && !has_plugin(run, "dataset") && has_plugin(run, "validation_dataset")
          ? "validation_dataset"
          : "dataset";
  const bool asks_for_kind = request.kind || sets_here(request, "kind");
  if (!asks_for_kind || !has_plugin(run, table)) read_like(run, table, out);
}

// How each [[validation_dataset.set]] that has a path is evaluated.
std::vector<std::string> sets_of(const Values& run) {
  std::vector<std::string> out;
  const std::optional<config::Value> sets =
      config::parse_toml_value(value_of(run, std::string(kTable) + "set"));
  if (!sets) return out;
  for (const config::Value& set : sets->items)
    if (const config::Entry* path = set.find("path"); path != nullptr && !path->value.text.empty())
      out.push_back("--data '" + path->value.text + "'");
  return out;
}

bool names_data(const Values& run) {
  if (!sets_of(run).empty()) return false;
  return !value_of(run, "validation_dataset.path").empty() ||
         !value_of(run, "validation_dataset.plugin").empty() ||
         value_of(run, "validation_dataset.kind") == "\"mock\"";
}

// A checkpoint's run is the folder around the checkpoints.
std::optional<fs::path> run_config_of(const fs::path& checkpoint) {
  const fs::path file = checkpoint.parent_path().parent_path() / config::kResolvedFile;
  return is_there(file) ? std::optional(file) : std::nullopt;
}

// The same of what the command line names; what is no checkpoint has none.
std::optional<fs::path> run_config_at(const fs::path& path) try {
  return run_config_of(checkpoint::resolve(path));
} catch (const Error&) {
  return std::nullopt;  // told where the model is looked for
}

std::string plugins_set(const char* key, const std::vector<fs::path>& paths) {
  std::vector<std::string> texts;
  for (const fs::path& path : paths) texts.push_back(config::escape_references(path.string()));
  return std::string("plugins.") + key + "=" + to_toml(OptionValue(texts));
}

// What the run loaded and where it looked for plugins, as --set; what was typed counts instead.
// What can no longer be loaded is refused as train refuses it.
std::vector<std::string> plugins_of(const fs::path& run_config, const Request& request,
                                    const Tell& tell) {
  Diagnostics ignored;  // of a file that somebody has edited
  config::LoadOptions options;
  options.file = run_config;
  for (const char* key : {"plugins.load=", "plugins.path="})
    if (std::any_of(request.sets.begin(), request.sets.end(),
                    [&](const std::string& set) { return set.starts_with(key); }))
      options.sets.push_back(key + std::string("[]"));
  const plan::ForeignPlugins named =
      plan::foreign_plugins(config::Source::load(options, ignored), run_config.parent_path(),
                            request.trust_plugins, tell);
  const std::vector<fs::path>& files = named.files;
  std::vector<std::string> out;
  if (!named.folders.empty()) out.push_back(plugins_set("path", named.folders));
  if (files.empty()) return out;
  out.push_back(plugins_set("load", files));
  const std::vector<Origin>& origins = named.origins;
  loader::Registry registry({});
  for (size_t i = 0; i < files.size(); ++i) try {
      registry.load_named(files[i]);
    } catch (const Error& error) {
      throw Error(error)
          .key("plugins.load")
          .at(origins[i])
          .help("--set 'plugins.load=[\"/path/to/" + files[i].filename().string() +
                "\"]' says where it is now, --set 'plugins.load=[]' does without");
    }
  return out;
}

// The folder whose tokenizer and chat template the data are read with: of a run that of
// model.pretrained, as the run itself did, or what its checkpoints carry along where that is no
// longer there; of a Hugging Face folder itself. "": there is none.
std::string language_folder(const Subject& subject, const Values& run) {
  const fs::path own = subject.source.folder();
  if (!subject.source.is_checkpoint()) return own.string();
  std::vector<fs::path> places = {text_in(run, "model.pretrained")};
  if (const auto base = checkpoint::read_meta(own).base) places.emplace_back(base->path);
  places.push_back(own / "source");
  for (const fs::path& place : places)
    if (!place.empty() && tokenizer::tokenizer_file(place)) return place.string();
  return "";
}

// Texts are read with the tokenizer that the run read its own with, or that comes with the weights;
// as bytes where the run did.
void name_tokenizer(const Subject& subject, const Values& run, const Request& request,
                    Values& data) {
  const std::string kind = text_in(data, "kind");
  if (data.count("plugin") != 0 || sets_here(request, "plugin") ||
      sets_here(request, "tokenizer") || (!kind.empty() && kind != "text"))
    return;
  const std::string named = text_in(data, "tokenizer");
  auto has_tokenizer = [](const std::string& folder) {
    return !folder.empty() && tokenizer::tokenizer_file(folder);
  };
  if (named == config::kBytes || has_tokenizer(named)) return;
  const bool bytes = named.empty() && text_in(run, "dataset.kind") == "text" &&
                     !has_plugin(run, "dataset") && text_in(run, "dataset.tokenizer").empty();
  const std::string folder = bytes ? "" : language_folder(subject, run);
  if (has_tokenizer(folder)) data["tokenizer"] = quoted(folder);
}

// Rows that nobody asked to be read as they are written, braces and all.
void check_rows(const data::DatasetConfig& data, const Request& request, const Subject& subject,
                const Values& run) {
  if (data.kind == "mock" || request.kind || sets_here(request, "kind") ||
      !names_other_data(request) || !is_rows(data.path) || is_rows(text_in(run, "dataset.path")))
    return;
  throw Error(ErrorCode::bad_dataset, data.path + " holds rows of JSON by its name, and kind = \"" +
                                          data.kind + "\" would read them with braces and quotes")
      .key(std::string(kTable) + "plugin")
      .help(std::string("--set validation_dataset.plugin=jsonl") +
            (language_folder(subject, run).empty()
                 ? " --set validation_dataset.jsonl.tokenizer=FOLDER"
                 : "") +
            " reads chats, prompts or texts in them")
      .help("--kind " + data.kind + " reads the file as it is");
}

std::vector<fs::path> all_checkpoints(const std::string& path) {
  std::vector<fs::path> out;
  for (const fs::path& folder : {fs::path(path), fs::path(path) / "checkpoints"}) {
    for (const checkpoint::Found& found : checkpoint::find_all(folder, checkpoint::For::reading))
      if (found.problem.empty())
        out.push_back(found.path);
      else
        throw Error(ErrorCode::bad_checkpoint, found.problem)
            .help("move " + found.path.string() + " away, or leave out --all");
    if (!out.empty()) return out;
  }
  throw Error(ErrorCode::no_checkpoint, path + " holds no checkpoints, which --all asks for")
      .help("leave out --all for a checkpoint or a folder of weights")
      .help("meshwright checkpoint ls FOLDER shows what is there");
}

}  // namespace

Subject subject_of(const Request& request, const Tell& tell) {
  std::vector<fs::path> folders;
  if (request.all) folders = all_checkpoints(request.path);
  const fs::path path = request.all ? folders.back() : fs::path(request.path);
  const std::optional<fs::path> run_config =
      request.all ? run_config_of(path) : run_config_at(path);
  std::vector<std::string> plugins;
  if (run_config) plugins = plugins_of(*run_config, request, tell);
  std::vector<std::string> sets = plugins;
  sets.insert(sets.end(), request.sets.begin(), request.sets.end());
  generate::Source source(path, sets);
  if (folders.empty()) folders.push_back(source.folder());
  Subject out{.source = std::move(source), .folders = std::move(folders)};
  if (out.source.is_checkpoint() && run_config) {
    out.run_config = run_config;
    out.plugins = std::move(plugins);
    const std::string seed = value_of(settings_of(*out.run_config), "run.seed");
    std::from_chars(seed.data(), seed.data() + seed.size(), out.seed);
  }
  return out;
}

generate::Settings settings(const Subject& subject, const Request& request, int64_t world_size) {
  generate::check_sets(subject.source, request.sets, "evaluating", {"validation_dataset"});
  for (const std::string& set : request.sets)
    for (const char* key : {"every_steps", "num_batches"})
      if (set.starts_with(std::string(kTable) + key + "="))
        throw Error(ErrorCode::bad_set, "--set " + std::string(kTable) + key +
                                            " says how a run is validated, not how this is read")
            .key(std::string(kTable) + key)
            .help("--samples N reads the first N samples only");
  const Values run = settings_of_run(subject);
  Values data;
  const bool named = names_other_data(request);
  if (!named && names_data(run)) {
    for (const auto& [key, value] : run)
      if (key.starts_with(kTable)) data[key.substr(kTable.size())] = value;
  } else {
    read_like_run(run, request, data);
  }
  if (request.data) {
    data["path"] = quoted(*request.data);
    if (data.count("kind") == 0 && data.count("plugin") == 0 && !sets_here(request, "plugin"))
      data["kind"] = quoted(kind_of(*request.data));
  }
  if (request.kind) {
    std::erase_if(data, [](const auto& one) {
      return one.first == "plugin" || one.first.find('.') != std::string::npos;
    });
    data["kind"] = quoted(*request.kind);
  }
  name_tokenizer(subject, run, request, data);
  if (request.seq_len) data["seq_len"] = std::to_string(*request.seq_len);
  if (data.count("seq_len") == 0 && subject.source.is_checkpoint())
    if (const int64_t length = checkpoint::read_meta(subject.source.folder()).seq_len; length > 0)
      data["seq_len"] = std::to_string(length);
  if (!named && !names_data(run) && !request.kind) {
    const std::vector<std::string> sets = sets_of(run);
    if (!sets.empty()) {
      Error error(ErrorCode::usage,
                  "evaluate reads one data set, and the run was validated on several");
      for (const std::string& set : sets) error.help(set);
      throw error;
    }
    throw Error(ErrorCode::usage,
                "evaluate needs data that the model has not learned from" +
                    std::string(subject.run_config ? ": the run was not validated" : ""))
        .help("--data 'held_out/*.txt'")
        .help("--data held_out.bin --kind tokens");
  }
  // Global batches that every schedule of a pipeline can divide; they are read to the last sample
  // in any case.
  const std::string local = std::to_string(request.batch),
                    global = std::to_string(2 * world_size * request.batch);
  generate::Settings out;
  out.toml = "schema = 1\n" + generate::model_tables(subject.source) +
             "[step_scheduler]\nglobal_batch_size = " + global + "\nlocal_batch_size = " + local +
             "\n[dataset]\nkind = \"mock\"\nseq_len = " +
             (data.count("seq_len") != 0 ? data["seq_len"] : "512") + "\n";
  out.sets = subject.plugins;
  const std::vector<std::string>& model = subject.source.model_settings();
  out.sets.insert(out.sets.end(), model.begin(), model.end());
  for (const auto& [key, value] : data) out.sets.push_back(std::string(kTable) + key + "=" + value);
  out.sets.insert(out.sets.end(), request.sets.begin(), request.sets.end());
  return out;
}

data::DatasetConfig data_of(const plan::Job& job, const Subject& subject, const Request& request) {
  data::DatasetConfig out =
      data::dataset_config(job, "validation_dataset", subject.source.vocab(), subject.seed + 1);
  const Values run = settings_of_run(subject);
  if (out.of_plugged_kind()) return out;
  if (out.plugin) {
    out.plugin->pretrained = language_folder(subject, run);
    return out;
  }
  check_rows(out, request, subject, run);
  return out;
}

Error as_error_of_evaluate(const Error& error) {
  Error out(error.code(), error.message());
  for (const std::string& key : error.keys())
    if (key == error.key())
      out.key(key);
    else
      out.about(key);
  out.at(error.origin());
  for (const std::string& help : error.helps())
    if (help.find("model.pretrained") == std::string::npos &&
        help.find("model.config") == std::string::npos)
      out.help(help);
  for (const std::string& note : error.notes()) out.note(note);
  return out;
}

}  // namespace meshwright::evaluate
