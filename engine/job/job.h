// A job: its configuration, the plugins that come with it, and what its data come to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.h"
#include "engine/data/dataset.h"
#include "engine/data/mix.h"
#include "engine/job/plan.h"
#include "meshwright/data/dataset_inspector.h"

namespace meshwright::plan {

// Plugins that the configuration of a run's folder names, for verbs that read such a folder:
// somebody else may have made it, and what it brings along is data.

struct ForeignPlugins {
  std::vector<std::filesystem::path> files, folders;  // [plugins] load and path
  std::vector<Origin> origins;                        // of the files
};

// What `source`, the configuration in `folder`, names by absolute paths that lead out of the
// folder. `tell` hears of each that is not where plugins are looked for anyway. Throws
// Error(plugin_owner) for any other unless they are `trusted`: --trust-plugins.
ForeignPlugins foreign_plugins(const config::Source& source, const std::filesystem::path& folder,
                               bool trusted, const std::function<void(const std::string&)>& tell);

// How long a run is: in steps, or in epochs of its data.

// After how many steps each of `samples` has been read at least `epochs` times, when those behind
// `trained`, whose batches may have been others, read `batch` samples each: the sampler goes on
// into the next epoch where the last one is not full. Throws Error(out_of_range) for more than
// there are numbers.
int64_t steps_of_epochs(int64_t epochs, int64_t samples, int64_t batch,
                        const Trained& trained = {});

// "3.1 steps of 8": how many steps of `batch` samples read `samples` once, down to a tenth.
std::string steps_an_epoch(int64_t samples, int64_t batch);

// Sets plan.max_steps, for which the workload must be planned, and says what epochs come to.
// `assumed_world`: that of PlanRequest.
void count_steps(const Job& job, bool assumed_world, JobPlan& plan);

}  // namespace meshwright::plan

namespace meshwright::data {

// How much of the data a step reads.

// What tells of the rows of a plugin's data; nullptr: they have none, or no plugin brings them.
DatasetInspector* inspector_of(const DatasetConfig& config);

// Documents that lie in samples, of a kind that counts them: DatasetInspector::numbers() has
// `used`.
std::optional<int64_t> documents_in(const std::vector<std::pair<std::string, int64_t>>& numbers);

// The mean over the steps of an epoch.
double documents_a_step(int64_t documents, int64_t samples, int64_t batch);

// "an epoch is 3.1 steps of 8 samples, 20.8 documents a step", of all `samples` and `documents`.
std::string tell_steps(int64_t samples, int64_t batch, std::optional<int64_t> documents);

// The data of a job: what its tables and plugins say of them.

// What a table of a job asks for. Plugins are loaded where the table names one. Throws Error(4xx)
// for one that cannot be.
DatasetConfig dataset_config(const plan::Job& job, const std::string& table, int64_t vocab_size,
                             uint64_t seed);

// How many samples of each source the run of a job reads, from its first step to its last.
std::vector<int64_t> read_by_run(const plan::Job& job, const Mix& mix);
// The sources of [[dataset.mix]] as lines_of() has them; where samples are not known, because they
// cannot be opened here or a plugin would have to prepare them, shares alone. None of other data.
std::vector<std::string> tell_mix(const plan::Job& job);

// Whether the job's run is counted in epochs of a [dataset] that is named: a plan of it needs to
// know the samples.
bool counts_epochs(const plan::Job& job);
// Counts the samples of [dataset] for a run that is counted in epochs of them, so that a plan of
// the job knows its steps: prepares and opens the data. Does nothing for other runs, and where no
// data is named. Throws as prepare_data() and open_samples().
void count_samples(plan::Job& job);

}  // namespace meshwright::data
