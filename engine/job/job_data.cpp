#include "engine/job/job_data.h"

#include <algorithm>

#include "sdk/base/plain_text.h"
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

namespace meshwright::data {

DatasetInspector* inspector_of(const DatasetConfig& config) {
  if (!config.plugin) return nullptr;
  return static_cast<DatasetInspector*>(config.plugin->kind->extension(kDatasetInspector));
}

std::optional<int64_t> documents_in(const std::vector<std::pair<std::string, int64_t>>& numbers) {
  for (const auto& [name, value] : numbers)
    if (name == "used") return value;
  return std::nullopt;
}

double documents_a_step(int64_t documents, int64_t samples, int64_t batch) {
  return static_cast<double>(documents) * static_cast<double>(batch) / static_cast<double>(samples);
}

std::string tell_steps(int64_t samples, int64_t batch, std::optional<int64_t> documents) {
  std::string out =
      "an epoch is " + plan::steps_an_epoch(samples, batch) + (batch == 1 ? " sample" : " samples");
  if (!documents) return out;
  return out +
         text::format(", %.1f documents a step", documents_a_step(*documents, samples, batch));
}

DatasetConfig dataset_config(const plan::Job& job, const std::string& table, int64_t vocab_size,
                             uint64_t seed) {
  DatasetConfig out = dataset_config(job.config.table(table), vocab_size, seed);
  const std::optional<loader::LoadedDataset>& found =
      table == "dataset" ? job.dataset : job.validation_dataset;
  if (!found) return out;
  const std::string& name = found->info->name;
  out.plugin = PluginData{.name = name,
                          .kind = found->made,
                          .options = job.config.table(table + "." + name),
                          .pretrained = job.config.table("model").get_string("pretrained")};
  out.document_end.reset();
  return out;
}

bool counts_epochs(const plan::Job& job) {
  return job.config.table("step_scheduler").is_set("epochs") &&
         names_data(job.config.table("dataset"));
}

void count_samples(plan::Job& job) {
  if (!counts_epochs(job)) return;
  // Ids are held against the vocabulary when they are read, by whoever knows the model.
  const DatasetConfig config =
      dataset_config(job, "dataset", /*vocab_size=*/0,
                     static_cast<uint64_t>(job.config.table("run").get_int("seed")));
  prepare_data(config);
  job.samples = open_samples(config)->samples();
}

}  // namespace meshwright::data
