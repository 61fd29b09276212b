// The data that a run reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/train/same_data.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

struct RunData {
  data::DatasetConfig config;  // of the training data
  std::unique_ptr<data::Dataset> train, validation;
  std::string fingerprint;       // of the training data
  std::vector<FileGroup> files;  // which all ranks must have alike
};
// [dataset], and [validation_dataset] where it names data. Throws as the functions of
// data/dataset.h.
RunData open_run_data(const Job& job, int64_t vocab, uint64_t seed);

}  // namespace meshwright::train
