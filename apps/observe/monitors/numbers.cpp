#include "apps/observe/monitors/numbers.h"

#include <chrono>
#include <cmath>

#include "sdk/base/terminal/report.h"

namespace meshwright::monitor {

namespace {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// What is no field of a row.
struct Own {
  const char *key, *prometheus, *help;
  bool counter = false;
};
constexpr Own kOwn[] = {
    // Behind a resume it may be lower than before: no counter.
    {"steps", "meshwright_completed_steps",
     "Steps that are complete, those before a resume included."},
    {"trained", "meshwright_steps_total", "Steps since this process started.", true},
    {"planned", "meshwright_steps_planned", "Steps that the run is to have (max_steps)."},
    {"time", "meshwright_last_step_timestamp_seconds",
     "When the last step ended, since 1970; before the first one, when the process started."},
    {"checkpoint", "meshwright_checkpoint_steps", "Steps that the newest checkpoint has."},
    {"unsaved", "meshwright_checkpoint_failures_total",
     "Checkpoints that could not be written since this process started.", true},
    {"training", "meshwright_run_training", "1 while the run trains, 0 once it has ended."},
    {"finished", "meshwright_run_finished", "1 once all steps of the run are done."},
};

}  // namespace

Numbers::Numbers(const RunFacts& facts)
    : labels_{{"run", report::printable(facts.run)},
              {"strategy", report::printable(facts.strategy)}},
      info_{.name = "meshwright_run_info",
            .help = "Always 1; its labels say what runs.",
            .counter = false,
            .labels = labels_,
            .value = 1} {
  info_.labels.emplace_back("version", facts.version);
  info_.labels.emplace_back("ranks", std::to_string(facts.ranks));
  set("steps", static_cast<double>(facts.completed));
  set("trained", 0);
  set("planned", static_cast<double>(facts.max_steps));
  set("time", unix_time());
  set("unsaved", 0);
  set("training", 1);
  set("finished", 0);
  publish();
}

void Numbers::set(const std::string& key, double value) {
  auto found = at_.find(key);
  if (found != at_.end()) {
    now_[found->second].value = value;
    return;
  }
  for (const Own& own : kOwn)
    if (key == own.key)
      names_.push_back({.tag = {},
                        .prometheus = own.prometheus,
                        .help = own.help,
                        .divisor = 1,
                        .counter = own.counter});
  at_.emplace(key, now_.size());
  now_.push_back({&names_.back(), value});
}

void Numbers::row(const Row& row) {
  for (const auto& field : row.fields) {
    // A prefix keeps fields apart from what is the class' own.
    const std::string key = "." + std::string(field.key());
    const std::optional<double> value = number_of(field.value());
    if (!value || counts_rows(field.key())) continue;
    auto found = at_.find(key);
    if (found == at_.end()) {
      // What was never a number is left out: a monitor takes NaN for a fault.
      if (std::isnan(*value)) continue;
      Name name = name_of(field.key());
      if (name.prometheus.empty()) continue;
      names_.push_back(std::move(name));
      found = at_.emplace(key, now_.size()).first;
      now_.push_back({&names_.back(), 0});
    }
    Shown& shown = now_[found->second];
    const double told = *value / shown.name->divisor;
    if (!shown.name->counter)
      shown.value = told;
    else if (told > 0)
      shown.value += told;
  }
  set("steps", static_cast<double>(row.completed));
  if (row.is_step()) {
    set("time", unix_time());
    now_[at_.at("trained")].value += 1;
  }
  publish();
}

void Numbers::saved(int64_t completed, bool good) {
  if (good)
    set("checkpoint", static_cast<double>(completed));
  else
    now_[at_.at("unsaved")].value += 1;
  publish();
}

void Numbers::end(bool finished) {
  set("training", 0);
  set("finished", finished ? 1 : 0);
  std::lock_guard lock(mutex_);
  published_ = now_;
}

// A step that comes while somebody reads is published by the next one.
void Numbers::publish() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) published_ = now_;
}

std::vector<prometheus::Reading> Numbers::readings() const {
  std::vector<Shown> shown;
  {
    std::lock_guard lock(mutex_);
    shown = published_;
  }
  std::vector<prometheus::Reading> out{info_};
  for (const Shown& one : shown)
    out.push_back({one.name->prometheus, one.name->help, one.name->counter, labels_, one.value});
  return out;
}

}  // namespace meshwright::monitor
