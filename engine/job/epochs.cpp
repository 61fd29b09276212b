#include "engine/job/epochs.h"

#include <algorithm>

#include "sdk/base/terminal/report.h"

namespace meshwright::plan {

std::string steps_an_epoch(int64_t samples, int64_t batch) {
  const int64_t tenth = samples % batch * 10 / batch;
  return report::human_count(samples / batch) + (tenth > 0 ? "." + std::to_string(tenth) : "") +
         " steps of " + std::to_string(batch);
}

int64_t steps_of_epochs(int64_t epochs, int64_t samples, int64_t batch, const Trained& trained) {
  int64_t all = 0;
  if (__builtin_mul_overflow(epochs, samples, &all))
    throw Error(ErrorCode::out_of_range, "step_scheduler.epochs = " + std::to_string(epochs) +
                                             " of " + std::to_string(samples) +
                                             " samples is a run without an end")
        .key("step_scheduler.epochs")
        .help("set step_scheduler.max_steps = 200 and step_scheduler.epochs = \"none\"");
  const int64_t left = std::max<int64_t>(0, all - trained.samples);
  return trained.steps + left / batch + (left % batch > 0 ? 1 : 0);
}

void count_steps(const Job& job, bool assumed_world, JobPlan& plan) {
  const Options& table = job.config.table("step_scheduler");
  plan.max_steps = table.find_int("max_steps");
  if (!table.is_set("epochs") || !job.samples) return;
  const int64_t epochs = table.get_int("epochs"),
                batch = assumed_world
                            ? table.get_int("global_batch_size")
                            : step_samples(plan.workload) * std::max<int64_t>(plan.mesh.dp, 1);
  const Trained trained = job.trained.value_or(Trained());
  plan.max_steps = steps_of_epochs(epochs, *job.samples, batch, trained);
  plan.notices.push_back("step_scheduler.epochs = " + std::to_string(epochs) + " is " +
                         report::counted(*plan.max_steps, "step", "steps") +
                         (trained.steps > 0
                              ? ", of which " + report::human_count(trained.steps) + " have read " +
                                    report::counted(trained.samples, "sample", "samples")
                              : "") +
                         ": an epoch is " + report::counted(*job.samples, "sample", "samples") +
                         ", " + steps_an_epoch(*job.samples, batch));
}

}  // namespace meshwright::plan
