#include "engine/data/dataset.h"
#include "engine/plan/plan.h"

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

}  // namespace meshwright::data
