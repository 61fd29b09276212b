#include "apps/observe/monitors/names.h"

#include <algorithm>

namespace meshwright::monitor {

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
std::string plain(std::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(),
      [](unsigned char c) {
        return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'));
      },
      '_');
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

}  // namespace meshwright::monitor
