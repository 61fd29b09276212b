// What a plugin's data set gives, held against what it promised.
#pragma once

#include <memory>

#include "engine/data/dataset.h"

namespace meshwright::data {

// Reads of `source` fill views with what no sample holds first, so that what was not written shows.
// Throws Error(bad_token) for tokens and targets outside of the vocabulary, Error(bad_dataset) for
// documents that descend, weights below 0 or not finite, and elements that were not written; each
// names plugin, sample and position. `config.plugin` is set.
std::unique_ptr<SampleSource> checked_source(const DatasetConfig& config,
                                             std::unique_ptr<SampleSource> source);
DatasetRequest request_of(const DatasetConfig& config);

}  // namespace meshwright::data
