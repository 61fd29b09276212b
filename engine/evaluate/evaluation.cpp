#include "engine/evaluate/evaluation.h"

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <map>
#include <utility>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/folder.h"
#include "engine/config/differences.h"
#include "meshwright/error.h"
#include "sdk/files/read_file.h"

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

// What the run's configuration sets, by key; empty where it cannot be read.
std::map<std::string, std::string> settings_of(const fs::path& file) {
  std::map<std::string, std::string> out;
  Diagnostics ignored;  // of a file that somebody has edited
  for (config::Setting& setting :
       config::settings_of(base::read_file(file), file.string(), ignored))
    if (setting.value != "\"none\"") out[setting.key] = std::move(setting.value);
  return out;
}

std::string value_of(const std::map<std::string, std::string>& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? "" : found->second;
}

// Of a file of this name, or files of this pattern.
std::string kind_of(const std::string& path) {
  if (!path.ends_with(".bin")) return "text";
  return is_there(path.substr(0, path.size() - 4) + ".idx") ? "megatron" : "tokens";
}

// How the run's own training data are read, for other data of the same form.
void like_training(const std::map<std::string, std::string>& run,
                   std::map<std::string, std::string>& out) {
  if (!value_of(run, "dataset.plugin").empty()) return;
  if (const std::string kind = value_of(run, "dataset.kind"); kind != "\"mock\"" && !kind.empty())
    out["kind"] = kind;
  for (const char* key : {"dtype", "seq_len", "packing", "document_end"})
    if (const std::string value = value_of(run, std::string("dataset.") + key); !value.empty())
      out[key] = value;
}

bool names_data(const std::map<std::string, std::string>& run) {
  return !value_of(run, "validation_dataset.path").empty() ||
         !value_of(run, "validation_dataset.plugin").empty() ||
         value_of(run, "validation_dataset.kind") == "\"mock\"";
}

// A checkpoint's run is the folder around the checkpoints.
std::optional<fs::path> run_config_of(const fs::path& checkpoint) {
  const fs::path file = checkpoint.parent_path().parent_path() / "config.resolved.toml";
  return is_there(file) ? std::optional(file) : std::nullopt;
}

std::vector<fs::path> all_checkpoints(const std::string& path) {
  std::vector<fs::path> out;
  for (const fs::path& folder : {fs::path(path), fs::path(path) / "checkpoints"}) {
    for (const checkpoint::Found& found : checkpoint::find_all(folder))
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

Subject subject_of(const Request& request) {
  std::vector<fs::path> folders;
  if (request.all) folders = all_checkpoints(request.path);
  generate::Source source(request.all ? folders.back() : fs::path(request.path), request.sets);
  if (folders.empty()) folders.push_back(source.folder());
  Subject out{.source = std::move(source), .folders = std::move(folders)};
  if (out.source.is_checkpoint()) out.run_config = run_config_of(out.folders.back());
  if (out.run_config) {
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
  std::map<std::string, std::string> run, data;
  if (subject.run_config) run = settings_of(*subject.run_config);
  auto set_here = [&](std::string_view key) {
    for (const std::string& set : request.sets)
      if (set.starts_with(std::string(kTable) + std::string(key) + "=")) return true;
    return false;
  };
  const bool named = request.data || set_here("path") || set_here("plugin") || set_here("kind");
  if (!named && names_data(run)) {
    for (const auto& [key, value] : run)
      if (key.starts_with(kTable)) data[key.substr(kTable.size())] = value;
  } else {
    like_training(run, data);
  }
  if (request.data) {
    data["path"] = quoted(*request.data);
    if (data.count("kind") == 0) data["kind"] = quoted(kind_of(*request.data));
  }
  if (request.kind) data["kind"] = quoted(*request.kind);
  if (request.seq_len) data["seq_len"] = std::to_string(*request.seq_len);
  if (data.count("seq_len") == 0 && subject.source.is_checkpoint())
    if (const int64_t length = checkpoint::read_meta(subject.source.folder()).seq_len; length > 0)
      data["seq_len"] = std::to_string(length);
  if (!named && !names_data(run) && !request.kind)
    throw Error(ErrorCode::usage,
                "evaluate needs data that the model has not learned from" +
                    std::string(subject.run_config ? ": the run was not validated" : ""))
        .help("--data 'held_out/*.txt'")
        .help("--data held_out.bin --kind tokens");
  // Global batches that every schedule of a pipeline can divide; they are read to the last sample
  // in any case.
  const std::string local = std::to_string(request.batch),
                    global = std::to_string(2 * world_size * request.batch);
  generate::Settings out;
  out.toml = "schema = 1\n" + generate::model_tables(subject.source) +
             "[step_scheduler]\nglobal_batch_size = " + global + "\nlocal_batch_size = " + local +
             "\n[dataset]\nkind = \"mock\"\nseq_len = " +
             (data.count("seq_len") != 0 ? data["seq_len"] : "512") + "\n";
  out.sets = subject.source.model_settings();
  for (const auto& [key, value] : data) out.sets.push_back(std::string(kTable) + key + "=" + value);
  out.sets.insert(out.sets.end(), request.sets.begin(), request.sets.end());
  return out;
}

data::DatasetConfig data_of(const plan::Job& job, const Subject& subject) {
  data::DatasetConfig out =
      data::dataset_config(job, "validation_dataset", subject.source.vocab(), subject.seed + 1);
  if (!out.plugin && subject.source.tokenizer() != nullptr) {
    // Of a checkpoint what it carries along says nothing of what the run read.
    if (!subject.source.is_checkpoint())
      data::check_text_model(out, subject.source.folder().string());
  }
  return out;
}

}  // namespace meshwright::evaluate
