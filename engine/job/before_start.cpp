#include "engine/job/before_start.h"

#include "sdk/base/plain_text.h"

namespace meshwright::plan {
namespace {

std::string short_number(double value) { return text::format("%.3g", value); }

}  // namespace

void warn_of_schedule(const Job& job, JobPlan& plan) {
  const Options &optimizer = job.config.table("optimizer"),
                &schedule = job.config.table("lr_scheduler");
  const double lr = optimizer.get_number("lr"), min_lr = schedule.get_number("min_lr");
  const Options& length = job.config.table("step_scheduler");
  const int64_t warmup = schedule.get_int("lr_warmup_steps"),
                steps = length.find_int("max_steps").value_or(plan.max_steps.value_or(0));
  const std::string style = schedule.get_string("lr_decay_style");
  if (lr == 0)
    plan.warnings.push_back("optimizer.lr = 0: no step changes a weight");
  else if (style != "constant" && min_lr >= lr)
    plan.warnings.push_back("lr_scheduler.min_lr = optimizer.lr = " + to_toml(lr) +
                            ": after the warm-up the learning rate never changes, " +
                            "although lr_decay_style is \"" + style +
                            "\"; lower lr_scheduler.min_lr, or set lr_scheduler.lr_decay_style = "
                            "\"constant\" if this is meant");
  if (steps > 0 && warmup > steps) {
    std::string text =
        "lr_scheduler.lr_warmup_steps = " + std::to_string(warmup) + " is longer than the run of " +
        (length.is_set("epochs") ? std::to_string(steps) + " steps"
                                 : "step_scheduler.max_steps = " + std::to_string(steps)) +
        ": the learning rate ends at " +
        short_number(lr * static_cast<double>(steps) / static_cast<double>(warmup)) +
        " and never reaches optimizer.lr = " + to_toml(lr);
    // The default may be too long for a trial of a few steps; whoever wrote a number down meant it
    // to be reached.
    (schedule.is_given("lr_warmup_steps") ? plan.warnings : plan.notices)
        .push_back(std::move(text));
  }
}

void check_positions(const Job& job, const ModelOutline& outline, const std::string& model,
                     JobPlan& plan) {
  const int64_t positions = outline.max_positions;
  if (positions <= 0) return;
  for (const char* name : {"dataset", "validation_dataset"}) {
    const Options& table = job.config.table(name);
    if (!reads_data(table) || table.get_int("seq_len") <= positions) continue;
    const std::string key = std::string(name) + ".seq_len", most = std::to_string(positions),
                      length = key + " = " + std::to_string(table.get_int("seq_len"));
    if (outline.positions_end)
      throw Error(
          ErrorCode::model_does_not_fit,
          length + " is above the " + most + " positions that " + model + " has weights for")
          .key(key)
          .help("set " + key + " = " + most);
    plan.warnings.push_back(
        length + " is above max_position_embeddings = " + most + " of " + model +
        ": its positions do not reach that far, and other programs cut such samples off; set " +
        key + " = " + most + " or raise max_position_embeddings in a copy of that file");
  }
}

}  // namespace meshwright::plan
