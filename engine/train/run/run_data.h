// The data that a run reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/train/run/batches.h"
#include "engine/train/run/same_data.h"
#include "meshwright/data/dataset_language.h"
#include "meshwright/nn/module.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

struct OpenData {
  data::DatasetConfig config;
  std::shared_ptr<const SampleSource> source;
};
struct RunData {
  OpenData train, validation;    // validation.source: nullptr without one
  std::string fingerprint;       // of the training data
  std::vector<FileGroup> files;  // which all ranks must have alike
  std::vector<Fingerprint> fingerprints;
};
// What takes long, before the ranks meet. Of a run that is counted in epochs [dataset] is opened,
// too, for whose samples a plan waits; else no source is returned. Throws as the functions of
// data/dataset.h.
OpenData prepare_run_data(const Job& job, int64_t vocab, uint64_t seed);
// [dataset], and [validation_dataset] where it names data. `opened`: what prepare_run_data()
// returned. Throws as that.
RunData open_run_data(const Job& job, int64_t vocab, uint64_t seed, OpenData opened);

// With which a model that learns these data is read later, where they are not the model's own (see
// DatasetLanguage). Throws Error(bad_dataset) for names that leave the folder.
std::vector<LanguageFile> language_of(const data::DatasetConfig& config);

// How samples of `data` that are padded are read for this model. What pads is told where nothing of
// it reaches a loss; it is left out where the model's angles do not follow from the length.
// `together`: micro-batches of one call of the trainer, which are of one length in a pipeline.
Padding padding_of(const Trainer& trainer, RunningModel& model, const data::DatasetConfig& data,
                   int64_t together);

// Throws Error(bad_module) for a model without attention cores: nothing of it would keep the
// documents of a sample apart.
void check_documents_reach(torch::nn::Module& model, const std::string& name,
                           const data::DatasetConfig& config);

}  // namespace meshwright::train
