#include "engine/plan/before_start.h"

#include <algorithm>
#include <cstdio>

#include "engine/outlines/models.h"

namespace meshwright::plan {
namespace {

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

void warn_of_schedule(const Job& job, JobPlan& plan) {
  const Options &optimizer = job.config.table("optimizer"),
                &schedule = job.config.table("lr_scheduler");
  const double lr = optimizer.get_number("lr"), min_lr = schedule.get_number("min_lr");
  const int64_t warmup = schedule.get_int("lr_warmup_steps"),
                steps = job.config.table("step_scheduler").get_int("max_steps");
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
        "lr_scheduler.lr_warmup_steps = " + std::to_string(warmup) +
        " is longer than the run of step_scheduler.max_steps = " + std::to_string(steps) +
        ": the learning rate ends at " +
        short_number(lr * static_cast<double>(steps) / static_cast<double>(warmup)) +
        " and never reaches optimizer.lr = " + to_toml(lr);
    // The default may be too long for a trial of a few steps; whoever wrote a number down meant it
    // to be reached.
    (schedule.is_given("lr_warmup_steps") ? plan.warnings : plan.notices)
        .push_back(std::move(text));
  }
}

void warn_of_positions(const Job& job, const std::string& model, JobPlan& plan) {
  const outlines::ConfigJson whole = outlines::load_config(model);
  const outlines::ConfigJson config =
      whole.has("text_config") ? whole.object("text_config") : whole;
  if (!config.has("max_position_embeddings"))
    return;  // the family's own default is no statement of this model
  int64_t positions = config.integer("max_position_embeddings", 1, INT64_MAX);
  // Stretched positions reach further than the field says where it was left at the length of the
  // first training.
  if (config.has("rope_scaling")) {
    const outlines::ConfigJson scaling = config.object("rope_scaling");
    double original = scaling.number("original_max_position_embeddings", 1, 1e12,
                                     static_cast<double>(positions)),
           stretched = original * scaling.number("factor", 0, 1e6, 1.0);
    positions = std::max(positions, static_cast<int64_t>(stretched));
  }
  for (const char* name : {"dataset", "validation_dataset"}) {
    const Options& table = job.config.table(name);
    if (!reads_data(table) || table.get_int("seq_len") <= positions) continue;
    plan.warnings.push_back(
        std::string(name) + ".seq_len = " + std::to_string(table.get_int("seq_len")) +
        " is above max_position_embeddings = " + std::to_string(positions) + " of " +
        config.name() +
        ": its positions do not reach that far, and other programs cut such samples off; set " +
        name + ".seq_len = " + std::to_string(positions) +
        " or raise max_position_embeddings in a copy of that file");
  }
}

}  // namespace meshwright::plan
