#include "engine/train/run/run_data.h"
#include "engine/job/job_data.h"

#include <filesystem>
#include <numeric>
#include <utility>

#include "engine/checkpoint/checksum.h"
#include "engine/data/plugin_data.h"
#include "engine/job/plan.h"
#include "engine/models/running/rotary.h"
#include "meshwright/nn/attention.h"
#include "sdk/base/words.h"

namespace meshwright::train {

namespace {

// The data of a validation is of another seed.
data::DatasetConfig config_of(const Job& job, const std::string& table, int64_t vocab,
                              uint64_t seed) {
  return data::dataset_config(job.impl(), table, vocab, table == "dataset" ? seed : seed + 1);
}

bool validates(const Job& job) { return data::names_data(job.table("validation_dataset")); }

OpenData open_table(const Job& job, const std::string& table, int64_t vocab, uint64_t seed,
                    const std::string& what, RunData& run, OpenData out = {}) {
  if (!out.source) out.config = config_of(job, table, vocab, seed);
  if (table == "dataset")
    data::check_text_model(out.config, job.table("model").get_string("pretrained"));
  if (!out.source) out.source = data::open_samples(out.config);
  const std::string key = table + (out.config.plugin ? ".plugin" : ".path");
  run.files.push_back({key, "files of the " + what, out.source->files()});
  run.fingerprints.push_back(
      {key, what, checkpoint::to_hex(data::fingerprint_of(out.config, *out.source))});
  return out;
}

// The setting with which a sample is one document.
std::string one_document_each(const data::DatasetConfig& config) {
  if (!config.plugin) return "set " + config.table + ".packing = false";
  const OptionSchema& schema = config.plugin->options.schema();
  const meshwright_option* packing = schema.find("packing");
  if (packing != nullptr && packing->choices != nullptr)
    for (const std::string& choice : text::split(packing->choices, '|'))
      if (choice == "none") return "set " + schema.table + ".packing = \"none\"";
  return "read data whose samples are one document each";
}

}  // namespace

OpenData prepare_run_data(const Job& job, int64_t vocab, uint64_t seed) {
  OpenData out{config_of(job, "dataset", vocab, seed), nullptr};
  data::prepare_data(out.config);
  if (validates(job)) data::prepare_data(config_of(job, "validation_dataset", vocab, seed));
  if (data::counts_epochs(job.impl())) out.source = data::open_samples(out.config);
  return out;
}

std::vector<LanguageFile> language_of(const data::DatasetConfig& config) {
  if (!config.plugin) return {};
  const auto* language =
      static_cast<DatasetLanguage*>(config.plugin->kind->extension(kDatasetLanguage));
  if (language == nullptr) return {};
  std::vector<LanguageFile> out = language->language(data::request_of(config));
  for (const LanguageFile& file : out) {
    const std::filesystem::path name = file.name;
    if (name.empty() || name.is_absolute() || name != name.lexically_normal() ||
        *name.begin() == "..")
      throw Error(ErrorCode::bad_dataset, "the plugin " + config.plugin->name + " wants \"" +
                                              file.name + "\" saved, which is no name in a folder");
  }
  return out;
}

Padding padding_of(const Trainer& trainer, RunningModel& model, const data::DatasetConfig& data,
                   int64_t together) {
  // The engine's own data is not padded.
  if (!data.plugin || !model.generates() || model.changes_batches()) return {};
  const ParallelSizes& sizes = trainer.plan().shared.sizes;
  bool by_length = false;  // alike on all stages: what has no parameters lies on each
  for (const auto& module : model.module()->modules())
    if (const auto rotary = std::dynamic_pointer_cast<modules::RotaryEmbeddingImpl>(module))
      by_length = by_length || rotary->follows_length();
  // Stages of a pipeline send each other hidden states of one size in a run. Each of them reads all
  // of its micro-batches, and so knows their longest without asking.
  const bool whole = by_length || (sizes.pp > 1 && !trainer.plan().outline);
  return {.told = true,
          .multiple = whole ? 0 : std::lcm(int64_t{8}, 2 * sizes.cp * sizes.tp),
          .together = sizes.pp > 1 ? together : 1};
}

void check_documents_reach(torch::nn::Module& model, const std::string& name,
                           const data::DatasetConfig& config) {
  for (const auto& module : model.modules())
    if (std::dynamic_pointer_cast<AttentionCoreImpl>(module)) return;
  throw Error(ErrorCode::bad_module, name +
                                         " has no attention core, so tokens would see those of "
                                         "other documents of their sample")
      .key(config.table + (config.plugin ? ".plugin" : ".packing"))
      .help("let attention call a meshwright::AttentionCore (meshwright/nn/attention.h)")
      .help(one_document_each(config));
}

RunData open_run_data(const Job& job, int64_t vocab, uint64_t seed, OpenData opened) {
  RunData out;
  out.train = open_table(job, "dataset", vocab, seed, "training data", out, std::move(opened));
  out.fingerprint = out.fingerprints.front().value;
  if (validates(job))
    out.validation = open_table(job, "validation_dataset", vocab, seed, "validation data", out);
  return out;
}

}  // namespace meshwright::train
