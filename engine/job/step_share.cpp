#include "engine/job/step_share.h"

#include "engine/job/epochs.h"
#include "sdk/base/plain_text.h"

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

}  // namespace meshwright::data
