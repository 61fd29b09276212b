#include "engine/train/step/step_monitor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/stages.h"
#include "sdk/base/device_waits.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/plain_text.h"

namespace meshwright::train {

double median_of(std::vector<double> values) {
  if (values.empty()) return kUnknown;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const double upper = *middle;
  return values.size() % 2 == 1 ? upper : (*std::max_element(values.begin(), middle) + upper) / 2;
}

double z_score(const std::vector<double>& values, double value) {
  if (values.size() < kFewest || !std::isfinite(value)) return kUnknown;
  const double median = median_of(values);
  std::vector<double> away = values;
  for (double& one : away) one = std::abs(one - median);
  const double deviation = std::max(1.4826 * median_of(std::move(away)), 1e-2 * std::abs(median));
  return (value - median) / deviation;  // NaN where all were 0 and this is, too
}

StepMonitor::StepMonitor(std::optional<double> skip_above, World& world)
    : skip_above_(skip_above),
      rank_(world.rank()),
      slots_(world.size() > 1 ? world.size() : 0),
      device_(world.device()),
      device_waits_(detail::device_waits(world)) {}

void StepMonitor::begin_step() {
  sources_.begin_step();
  facts_ = {};
  since_ = began_ = Clock::now();
  if (device_.is_cpu())
    waited_since_ = waited_began_ = detail::waited_ns();
  else
    device_waits_.watch(device_);
}

double StepMonitor::work() {
  const int64_t waited = detail::waited_ns();
  const double out = base::ms_since(std::exchange(since_, Clock::now())) -
                     static_cast<double>(waited - std::exchange(waited_since_, waited)) / 1e6;
  return std::max(out, 0.0);
}

void StepMonitor::write_work(double* slots) {
  // What a rank needs for its update is found out with the next step's sums; on a device, whose
  // host is ahead of it here, all that it has done.
  const double mine = device_.is_cpu() ? work() + std::exchange(after_sums_, kUnknown)
                                       : std::exchange(device_work_, kUnknown);
  slots[rank_] = std::isfinite(mine) ? mine : 0;
}

void StepMonitor::read_work(const double* slots) {
  if (device_.is_cpu()) {
    since_ = Clock::now();
    waited_since_ = detail::waited_ns();
  } else {
    // The host has just waited for the sums, before which the device has waited for all else.
    facts_.waited_ms = device_waits_.take_ms();
    // The first step makes communicators and chooses kernels.
    if (std::exchange(warm_, true))
      device_work_ = std::max(base::ms_since(began_) - facts_.waited_ms, 0.0);
  }
  // In the first step after the start there is no update of a step before.
  if (std::all_of(slots, slots + slots_, [](double ms) { return ms > 0; }))
    facts_.work_ms.assign(slots, slots + slots_);
}

void StepMonitor::end_step() {
  if (device_.is_cpu()) {
    after_sums_ = work();
    facts_.waited_ms = static_cast<double>(detail::waited_ns() - waited_began_) / 1e6;
  } else if (slots_ == 0) {
    facts_.waited_ms = 0;  // one rank
  }
}

std::string StepMonitor::reason(const StepResult& result) const {
  auto one = [&](const char* what, double value, double z,
                 const std::vector<double>& usual) -> std::string {
    if (!std::isfinite(value))
      return text::format("the %s is %s", what, std::isnan(value) ? "nan" : "infinite");
    if (!(z > *skip_above_)) return {};
    return text::format(
        "the %s %.4g is %.1f standard deviations above %.4g, the median of the last %zu steps",
        what, value, z, median_of(usual), usual.size());
  };
  std::string loss = one("loss", result.loss, facts_.loss_z, history_.losses);
  return loss.empty()
             ? one("gradient norm", result.grad_norm, facts_.grad_norm_z, history_.grad_norms)
             : loss;
}

void StepMonitor::scale_losses(const plan::LossScale& scale) {
  scale_ = scale;
  history_.loss_scale = scale.dynamic ? scale.start : 0;
}

void StepMonitor::restore(checkpoint::StepHistory history) {
  const double begins = history.loss_scale > 0 ? history.loss_scale : scale_.start;
  history_ = std::move(history);
  history_.loss_scale = scale_.dynamic ? begins : 0;
}

bool StepMonitor::overflowed(const StepResult& result) const {
  return scale_.dynamic && loss_scale() > 1 && std::isfinite(result.loss) &&
         !std::isfinite(result.grad_norm);
}

void StepMonitor::adapt(bool overflowed) {
  constexpr double kMost = 0x1p40;
  if (!scale_.dynamic) return;
  double& scale = history_.loss_scale;
  const bool grows = !overflowed && ++history_.even_steps >= kStepsToGrow;
  if (overflowed) scale /= 2;
  if (grows) scale = std::min(2 * scale, kMost);
  if (overflowed || grows) history_.even_steps = 0;
}

// All ranks have the same norm, and so the same scale.
bool StepMonitor::judge(const StepResult& result, World& world) {
  facts_.loss_z = z_score(history_.losses, result.loss);
  facts_.grad_norm_z = z_score(history_.grad_norms, result.grad_norm);
  const bool too_large = overflowed(result);
  adapt(too_large);
  facts_.skipped = facts_.overflowed = too_large;
  if (too_large) {
    facts_.why =
        text::format("float16 gradients overflowed; the loss scale is %.0f now", loss_scale());
    ++history_.left_out;
    return true;  // it says nothing about the data
  }
  if (skip_above_) {
    facts_.why = reason(result);
    facts_.skipped = !facts_.why.empty();
    const bool skips = rank_ == 0 && facts_.skipped;  // rank 0 decides for all
    facts_.skipped = largest_of_ranks(world, {skips ? 1.0 : 0.0})[0] > 0;
  }
  remember(result);
  return facts_.skipped;
}

void StepMonitor::remember(const StepResult& result) {
  history_.left_out += facts_.skipped ? 1 : 0;
  history_.in_a_row = facts_.skipped ? history_.in_a_row + 1 : 0;
  if (history_.in_a_row == kMostInARow) {
    history_.in_a_row = 0;
    history_.losses.clear();
    history_.grad_norms.clear();
    facts_.starts_anew = true;
    return;
  }
  // Those of a step that is left out as well: a few move nothing, and what has come to stay is
  // usual one day.
  auto add = [](std::vector<double>& window, double value) {
    if (!std::isfinite(value)) return;
    while (window.size() >= kWindow) window.erase(window.begin());
    window.push_back(value);
  };
  add(history_.losses, result.loss);
  add(history_.grad_norms, result.grad_norm);
}

namespace {

std::string number(double value) {
  const std::string text = text::format("%g", value);
  return std::isnan(value) ? "nan" : text;
}

// Collective. The first tensor of the model that holds a value that is not finite on some rank;
// empty: none. Ranks of a pipeline have other parameters each: they count as in the whole outline.
std::string first_nonfinite(ParallelModel& model, const ModelOutline& outline, bool gradients,
                            World& world) {
  const size_t none = outline.parameters.size();
  size_t first = none;
  for (const ParallelParameter& p : model.parameters()) {
    const at::Tensor& tensor = gradients ? p.grad : p.local;
    if (!tensor.defined() || tensor.numel() == 0 ||
        std::isfinite(tensor.detach().abs().max().item<double>()))
      continue;
    for (size_t i = 0; i < first; ++i)
      if (outline.parameters[i].name == p.name) first = i;
  }
  const double earliest = largest_of_ranks(world, {-static_cast<double>(first)})[0];
  auto index = static_cast<size_t>(-earliest);
  return index < none ? outline.parameters[index].name : "";
}

}  // namespace

void throw_nonfinite(const StepResult& result, ParallelModel& model, const ModelOutline& outline,
                     const Stages* stages, double loss_scale, World& world) {
  auto named = [&](const std::string& parameter) {
    return parameter + (stages != nullptr ? stages->told_stage(parameter) : "");
  };
  bool norm = std::isfinite(result.loss);
  double value = norm ? result.grad_norm : result.loss;
  Error error(ErrorCode::nonfinite,
              "step " + std::to_string(result.step) + ": the " + (norm ? "gradient norm" : "loss") +
                  " is " + (std::isnan(value) ? "nan" : "infinite") + " (loss " +
                  number(result.loss) + ", gradient norm " + number(result.grad_norm) + ", lr " +
                  number(result.lr) + "); the optimizer has not used it");
  error.key("run.stop_on_nonfinite");
  std::string weight = first_nonfinite(model, outline, false, world),
              gradient = first_nonfinite(model, outline, true, world);
  if (!weight.empty())
    error.note("the weight " + named(weight) + " already holds values that are not finite");
  if (weight.empty() && !gradient.empty())
    error.note("the gradient of " + named(gradient) + " is not finite; all weights are");
  if (norm && loss_scale > 1)
    error
        .note("some gradients are float16, and the loss was multiplied by " + number(loss_scale) +
              " (optimizer.loss_scale)")
        .help("set optimizer.dynamic_loss_scale = true")
        .help("set optimizer.loss_scale = " + number(std::max(loss_scale / 64, 1.0)));
  // New adapters are finite.
  if (result.step == 0 && low_rank_factor(weight))
    error.help("the adapters were so before the first step: look at the files of lora.adapter");
  else if (result.step == 0 && !weight.empty())
    error.help("the weights were so before the first step: look at the files of model.pretrained");
  else
    error.help(
        "lower optimizer.lr, raise lr_scheduler.lr_warmup_steps, or set optimizer.max_grad_norm = "
        "1.0");
  throw error.help("set run.stop_on_nonfinite = false to go on regardless");
}

}  // namespace meshwright::train
