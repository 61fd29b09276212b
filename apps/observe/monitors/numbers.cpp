#include "apps/observe/monitors/numbers.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <chrono>
#include <cmath>
#include <limits>

#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::monitor {

namespace json = boost::json;

std::optional<Row> parse_row(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  boost::system::error_code failed;
  json::value value = json::parse(line, failed);
  if (failed || !value.is_object()) return std::nullopt;
  Row out{.completed = 0, .fields = {}};
  // Of sources and sets by name: "source_samples/web".
  for (const auto& [key, field] : value.as_object())
    if (const json::object* named = field.if_object(); named != nullptr)
      for (const auto& [name, one] : *named)
        out.fields[std::string(key) + "/" + std::string(name)] = one;
    else
      out.fields[key] = field;
  // Rows of the first versions have no completed_steps.
  const json::value* step = out.fields.if_contains("step");
  if (step == nullptr || !step->is_int64() || step->as_int64() < 0) return std::nullopt;
  out.completed = step->as_int64() + 1;
  return out;
}

std::optional<double> number_of(const json::value& value) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (value.is_number()) return value.to_number<double>();
  const json::array* list = value.if_array();
  if (list == nullptr || list->empty()) return std::nullopt;
  double out = -std::numeric_limits<double>::infinity();
  for (const json::value& item : *list) {
    if (!item.is_number()) return std::nullopt;
    out = std::max(out, item.to_number<double>());
  }
  return out;
}

namespace {

struct Known {
  std::string_view field, tag, prometheus, help;
  bool counter = false;
};

constexpr Known kKnown[] = {
    {"loss", "train/loss", "meshwright_training_loss", "Mean loss of a target in the last step."},
    {"grad_norm", "train/grad_norm", "meshwright_gradient_norm",
     "L2 norm of the gradients of the last step, before clipping."},
    {"lr", "train/lr", "meshwright_learning_rate", "Learning rate of the last step."},
    {"tokens", "train/tokens", "meshwright_tokens_total",
     "Tokens trained on since this process started, all ranks.", true},
    {"step_ms", "speed/step_ms", "meshwright_step_seconds", "How long the last step took."},
    {"tokens_per_second", "speed/tokens_per_second", "meshwright_tokens_per_second",
     "Tokens a second in the last step, all ranks."},
    {"memory_bytes", "memory/memory_bytes", "meshwright_memory_peak_bytes",
     "Most bytes of tensors of the rank that leads during the last step."},
    {"data_ms", "speed/data_ms", "meshwright_data_wait_seconds",
     "How long the last step waited for its samples."},
    {"validation_loss", "validation/loss", "meshwright_validation_loss",
     "Mean loss of a target in the last validation."},
    {"mfu", "speed/mfu", "meshwright_mfu_ratio",
     "Share of the device's arithmetic that the model's own took in the last step."},
    {"exposed_comm_ms", "speed/exposed_comm_ms", "meshwright_exposed_communication_seconds",
     "How long the last step waited for communication with nothing to compute."},
    {"tokens_per_second_per_rank", "speed/tokens_per_second_per_rank",
     "meshwright_tokens_per_second_per_rank", "Tokens a second and rank in the last step."},
    {"slowest_rank", "speed/slowest_rank", "meshwright_slowest_rank",
     "The rank that worked longest in the last step."},
    {"slowest_ms", "speed/slowest_ms", "meshwright_slowest_rank_seconds",
     "How much longer than the median of the others it worked."},
    {"rank_work_ms", "speed/rank_work_ms", "meshwright_rank_work_seconds",
     "What the ranks worked without waiting, of the last step that is known: the median."},
    {"rank_work_ms_least", "speed/rank_work_ms_least", "meshwright_rank_work_least_seconds",
     "The same of the rank that worked least."},
    {"rank_work_ms_most", "speed/rank_work_ms_most", "meshwright_rank_work_most_seconds",
     "The same of the rank that worked most."},
    {"loss_z", "train/loss_z", "meshwright_training_loss_zscore",
     "Standard deviations that the last loss lies above the median of those before."},
    {"grad_norm_z", "train/grad_norm_z", "meshwright_gradient_norm_zscore",
     "Standard deviations that the last gradient norm lies above the median of those before."},
    {"skipped", "train/skipped", "meshwright_steps_skipped_total",
     "Steps whose update was left out since this process started.", true},
    {"expert_imbalance", "experts/imbalance", "meshwright_expert_imbalance_ratio",
     "Tokens of the fullest expert over the mean, in the most uneven block of the last step."},
    {"dropped_tokens", "experts/dropped_tokens", "meshwright_dropped_tokens_total",
     "Assignments to experts that were not made since this process started.", true},
    {"expert_tokens", "", "", ""},  // a list as long as there are experts
};

// "step_ms", "rank_work_ms_least"
bool in_milliseconds(std::string_view field) {
  return field.ends_with("_ms") || field.find("_ms_") != std::string_view::npos;
}

bool take_ending(std::string& text, std::string_view ending) {
  if (!text.ends_with(ending)) return false;
  text.resize(text.size() - ending.size());
  return true;
}

// Letters, digits and underscores.
std::string plain(std::string_view field) {
  std::string out(field);
  std::ranges::replace_if(out, [](char c) { return !text::is_alphanumeric(c); }, '_');
  return out;
}

}  // namespace

Name name_of(std::string_view field) {
  const bool milliseconds = in_milliseconds(field);
  Name out;
  out.divisor = milliseconds ? 1000 : 1;
  for (const Known& known : kKnown)
    if (known.field == field) {
      out.tag = known.tag;
      out.prometheus = known.prometheus;
      out.help = known.help;
      out.counter = known.counter;
      return out;
    }
  std::string stem = plain(field);
  const char* group = "train/";
  if (milliseconds || field.find("per_second") != std::string_view::npos) group = "speed/";
  if (field.ends_with("_bytes")) group = "memory/";
  out.tag = group + stem;
  if (const size_t unit = stem.find("_ms_"); unit != std::string::npos) stem.erase(unit, 3);
  take_ending(stem, "_ms");
  if (milliseconds) stem += "_seconds";
  // A counter's ending, which only counters may have.
  take_ending(stem, "_total");
  out.prometheus = "meshwright_" + stem;
  out.help = "The field " + plain(field) + " of metrics.jsonl.";
  return out;
}

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
  const std::lock_guard lock(mutex_);
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
