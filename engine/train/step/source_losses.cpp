#include "engine/train/step/source_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "meshwright/data/dataset_kind.h"
#include "sdk/base/target_losses.h"

namespace meshwright::train {

using at::Tensor;

namespace {

constexpr double kRounding = 1e-3;  // of a loss in a narrow type, and of its parts

void add_to(std::vector<double>& sum, const std::vector<double>& more) {
  sum.resize(more.size());
  std::ranges::transform(sum, more, sum.begin(), std::plus());
}

// On the host, pinned where a device copies from it.
Tensor host_room(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  return at::empty(sizes, at::TensorOptions(type).pinned_memory(device.is_cuda()));
}

// [sources, rows]: which rows are of each source.
Tensor rows_of_sources(const std::vector<int64_t>& sources, int64_t count, at::Device device) {
  const auto rows = static_cast<int64_t>(sources.size());
  Tensor out = host_room({count, rows}, at::kBool, device).zero_();
  bool* values = out.mutable_data_ptr<bool>();
  for (int64_t row = 0; row < rows; ++row)
    values[sources[static_cast<size_t>(row)] * rows + row] = true;
  return out.to(device, /*non_blocking=*/true);
}

}  // namespace

void SourceLosses::add_told(const Tensor& more) {
  if (found_.empty() || !told_.sums.defined()) return;
  Part one = std::exchange(told_, {});
  if (more.defined()) {
    Tensor weights = host_room({sources()}, at::kDouble, one.sums.device());
    std::ranges::copy(one.weights, weights.mutable_data_ptr<double>());
    one.sums.add_(weights.to(one.sums.device(), /*non_blocking=*/true) * more.to(at::kDouble));
  }
  mine_.sums = mine_.sums.defined() ? mine_.sums.add_(one.sums) : one.sums;
  add_to(mine_.targets, one.targets);
  add_to(mine_.weights, one.weights);
}

void SourceLosses::write(double* slots) const {
  std::ranges::copy(mine_.targets, slots + sources());
  std::ranges::copy(mine_.weights, slots + 2 * sources());
}

void SourceLosses::read(const double* slots) {
  const size_t count = found_.size();
  for (size_t i = 0; i < count; ++i)
    found_[i] = {.targets = static_cast<int64_t>(slots[count + i]),
                 .weight = slots[2 * count + i],
                 .sum = slots[i]};
}

bool SourceLosses::add_up_to(double mean_loss) const {
  double sum = 0, weight = 0;
  for (const SourceLoss& one : found_) {
    sum += one.sum;
    weight += one.weight;
  }
  if (!(weight > 0) || !std::isfinite(sum) || !std::isfinite(mean_loss)) return true;
  return std::abs(sum / weight - mean_loss) <= kRounding * std::abs(mean_loss) + 1e-6;
}

Tensor loss_by_source(SourceLosses& sources, RunningModel& net, const MicroBatch& batch,
                      const Tensor& output, const Tensor& targets, const Tensor& weights,
                      const VocabularyShard* shard, SourceLosses::Part counted) {
  const int64_t first = batch.sources.front();
  const bool several = std::ranges::any_of(batch.sources, [&](int64_t s) { return s != first; });
  std::optional<detail::TargetLosses> kept;
  if (several) kept.emplace();
  const Tensor sum = net.loss_sum(output, targets, weights, shard);
  c10::NoGradGuard no_grad;
  const Tensor each = several ? kept->of(sum) : Tensor();
  kept.reset();
  counted.sums = at::zeros({sources.sources()}, sum.options().dtype(at::kDouble));
  if (!several) {
    counted.sums.select(0, first).copy_(sum);
    sources.tell(std::move(counted));
    return sum;
  }
  const Tensor rows = rows_of_sources(batch.sources, sources.sources(), sum.device());
  if (each.defined()) {
    // Chosen, and not multiplied: a row that is not a number is its source's alone.
    counted.sums.copy_(
        at::where(rows, each.view({batch.rows(), -1}).sum(1).unsqueeze(0), at::Scalar(0.0)).sum(1));
  } else {
    // A loss of the model's own, which says nothing of single targets: once more, of the same
    // output, with the targets of each source alone.
    const Tensor had = output.detach();
    for (int64_t source = 0; source < sources.sources(); ++source) {
      if (std::ranges::find(batch.sources, source) == batch.sources.end()) continue;
      const Tensor others = rows.select(0, source).logical_not().unsqueeze(1);
      counted.sums.select(0, source).copy_(
          net.loss_sum(had, targets.masked_fill(others, kNoTarget), weights, shard));
    }
  }
  sources.tell(std::move(counted));
  return sum;
}

}  // namespace meshwright::train
