#include "engine/job/job_data.h"

namespace meshwright::data {

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
