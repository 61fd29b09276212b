#include "engine/train/run/step_row.h"

#include <cmath>

#include "sdk/base/plain_text.h"

namespace meshwright::train {

std::vector<Metric> step_metrics(const StepResult& r, const StepCost& c) {
  const double tokens = static_cast<double>(r.tokens),
               per_second = c.step_ms > 0 ? tokens * 1000 / c.step_ms : 0;
  return {
      {"loss", r.loss, "%.9g"},
      {"grad_norm", r.grad_norm, "%.9g"},
      {"lr", r.lr, "%.9g"},
      {"tokens", tokens, "%.0f"},
      {"step_ms", c.step_ms, "%.3f"},
      {"tokens_per_second", per_second, "%.1f"},
      {"memory_bytes", static_cast<double>(c.memory_bytes), "%.0f"},
      {"data_ms", c.data_ms, "%.3f"},
      {"tokens_per_second_per_rank", per_second / static_cast<double>(c.ranks), "%.1f"},
      {"mfu", c.mfu, "%.4f"},
      {"exposed_comm_ms", c.exposed_comm_ms, "%.3f"},
      {"slowest_rank", c.slowest_rank < 0 ? kNone : static_cast<double>(c.slowest_rank), "%.0f"},
      {"slowest_ms", c.slowest_ms, "%.3f"},
      {"rank_work_ms", c.rank_work_ms, "%.3f"},
      {"rank_work_ms_least", c.rank_work_ms_least, "%.3f"},
      {"rank_work_ms_most", c.rank_work_ms_most, "%.3f"},
      {"loss_z", c.loss_z, "%.4g"},
      {"grad_norm_z", c.grad_norm_z, "%.4g"},
      {"skipped", c.skipped ? 1.0 : 0.0, "%.0f"},
      {"target_tokens", static_cast<double>(r.count), "%.0f"}};
}

std::string metric_text(const Metric& metric) {
  if (!std::isfinite(metric.value)) return "null";
  return text::format(metric.format, metric.value);
}

}  // namespace meshwright::train
