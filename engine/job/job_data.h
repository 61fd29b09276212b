// The data of a job: what its tables and plugins say of them.
#pragma once

#include <cstdint>
#include <string>

#include "engine/data/dataset.h"
#include "engine/job/plan.h"

namespace meshwright::data {

// What a table of a job asks for. Plugins are loaded where the table names one. Throws Error(4xx)
// for one that cannot be.
DatasetConfig dataset_config(const plan::Job& job, const std::string& table, int64_t vocab_size,
                             uint64_t seed);

// Whether the job's run is counted in epochs of a [dataset] that is named: a plan of it needs to
// know the samples.
bool counts_epochs(const plan::Job& job);
// Counts the samples of [dataset] for a run that is counted in epochs of them, so that a plan of
// the job knows its steps: prepares and opens the data. Does nothing for other runs, and where no
// data is named. Throws as prepare_data() and open_samples().
void count_samples(plan::Job& job);

}  // namespace meshwright::data
