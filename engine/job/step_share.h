// How much of the data a step reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/dataset.h"
#include "meshwright/data/dataset_inspector.h"

namespace meshwright::data {

// What tells of the rows of a plugin's data; nullptr: they have none, or no plugin brings them.
DatasetInspector* inspector_of(const DatasetConfig& config);

// Documents that lie in samples, of a kind that counts them: DatasetInspector::numbers() has
// `used`.
std::optional<int64_t> documents_in(const std::vector<std::pair<std::string, int64_t>>& numbers);

// The mean over the steps of an epoch.
double documents_a_step(int64_t documents, int64_t samples, int64_t batch);

// "an epoch is 3.1 steps of 8 samples, 20.8 documents a step", of all `samples` and `documents`.
std::string tell_steps(int64_t samples, int64_t batch, std::optional<int64_t> documents);

}  // namespace meshwright::data
