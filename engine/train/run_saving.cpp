// What a run saves: its checkpoints, and what goes along with them.
#include <algorithm>
#include <string>
#include <string_view>

#include "engine/checkpoint/adapters.h"
#include "engine/generate/source.h"
#include "engine/plan/adapters.h"
#include "engine/plan/plan.h"
#include "engine/train/rank_run.h"
#include "engine/weights/auxiliary_files.h"

namespace meshwright::train {

namespace fs = std::filesystem;

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

}  // namespace meshwright::train
