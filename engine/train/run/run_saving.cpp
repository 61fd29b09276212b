// What a run saves: its checkpoints, and what goes along with them.
#include <algorithm>
#include <string>
#include <string_view>

#include "engine/checkpoint/adapters.h"
#include "engine/checkpoint/base_model.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/weights/auxiliary_files.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/config/config.h"
#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "engine/train/preflight/same_run.h"
#include "engine/train/preflight/source.h"
#include "engine/train/run/rank_run.h"
#include "sdk/base/files/read_file.h"
#include "sdk/base/host/handed_files.h"

namespace meshwright::train {

namespace fs = std::filesystem;

// In place of the model's own: two languages side by side are none.
void Run::carry_language(KeptFiles& kept) const {
  constexpr std::string_view kSource = "source/", kMore = "source/additional_chat_templates/";
  const std::vector<LanguageFile> files = language_of(data_.train.config);
  auto brings = [&](std::string_view name) {
    return std::any_of(files.begin(), files.end(),
                       [name](const LanguageFile& file) { return file.name == name; });
  };
  kept.remove([&](std::string_view name) {
    return (brings("tokenizer.json") && name.starts_with(kSource) &&
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
  const bool bytes = data::reads_bytes(table("dataset"));
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
  saving.facts.data_fingerprint = data_.fingerprint;
  saving.facts.shuffle = table("dataset").get_bool("shuffle");
  saving.facts.seed = seed_;
  saving.facts.max_steps = max_steps_;
  const plan::Adapters adapters = plan::adapters_in(job_.impl().config, trainer_->outline());
  // All ranks read what they have to, or none goes on.
  agree_or_throw(*world_, outcome_of([&] {
    if (leader_) carry_files(saving, adapters.any());
    if (adapters.any()) leave_to_base(saving, from(), pretrained_, trainer_->outline());
    return std::string();
  }));
  if (from() != nullptr) from()->release();
  exports_.emplace(job_, run_path_);
  if (checkpoint_table.get_string("export") == "every")
    saving.published = [this](const fs::path& path) { exports_->write(path); };
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

}  // namespace meshwright::train
