// A run that goes on is the one that it was: its model, its data, its settings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/config/config.h"
#include "engine/data/dataset.h"
#include "engine/job/plan.h"

namespace meshwright::before {

// What config::kResolvedFile, beside a run's other records and in its checkpoints, holds of a run
// of this job.
std::string resolved_toml(const plan::Job& job);
// What differs from the configuration that the folder's run had until now, each with two values: as
// it was, as it is. nullopt: it is not known.
std::optional<std::vector<config::Difference>> settings_changed(const std::filesystem::path& folder,
                                                                const plan::Job& job);
// Whether model.pretrained names what it named to the run that saved the checkpoint.
bool begins_from_the_same(checkpoint::Checkpoint& from, const plan::Job& job);
// "dataset.jsonl.packing = "none" (was "bfd"), ..."; of many the first eight.
std::string changes_text(const std::vector<config::Difference>& changes);
// What each refusal of a checkpoint ends with.
inline constexpr const char* kStartAfresh =
    "set checkpoint.resume = \"none\" to start afresh; what is there is kept under another name";
// How a job begins with the weights of a checkpoint that it cannot continue. Words for a help.
std::string way_by_export(const checkpoint::Checkpoint& from);
// The model of a checkpoint is the job's, beyond its names and shapes: config.json as it is read
// (`config_text`), and the options of a plugin's family. Throws Error(checkpoint_mismatch) with
// every field and both values, and Error(bad_checkpoint).
void refuse_other_model(checkpoint::Checkpoint& from, const plan::Job& job,
                        const plan::JobModel& model, const std::string& config_text);
// Throws Error(checkpoint_mismatch) where the checkpoint has the state of another optimizer, or
// adapters that the job has not, or none where it has some.
void refuse_other_optimizer(const checkpoint::Checkpoint& from, const std::string& name);
void refuse_other_adapters(const checkpoint::Checkpoint& from, const plan::Job& job);
// The base model of a checkpoint with adapters is the one that the job names, wherever that lies
// now. Throws Error(checkpoint_mismatch) when it is another one, or none.
void check_base(checkpoint::Checkpoint& from, const std::string& pretrained);
// The adapters of a checkpoint count as often in the job as they did ([lora] r, alpha, rslora and
// the two patterns): their tensors do not say. `config`: the adapter_config.json of the job's own
// adapters. Throws Error(checkpoint_mismatch | bad_checkpoint).
void check_scale(checkpoint::Checkpoint& from, const Options& lora, const std::string& config);
// Throws Error(checkpoint_mismatch) when the samples or their order are others than the
// checkpoint's: data, seq_len, shuffle, seed. A mix may have other weights now, and more sources;
// those it had must be as they were. Of other data the settings that differ are named, as
// far as the checkpoint, or the folder of its run, has its configuration. Without a `fingerprint`
// the data are not looked at.
void refuse_other_data(checkpoint::Checkpoint& from, const plan::Job& job,
                       const std::optional<data::DataFingerprint>& fingerprint, int64_t seq_len);
// Of a run whose steps are all done: the settings that decide about its numbers are those it was
// trained with, options in its strategy's own table among them, and model.pretrained has the
// weights that it began from; how many steps or epochs, how ranks share the work, and what is saved
// and reported may be others; of model and data refuse_other_model() and refuse_other_data() have
// judged. Throws Error(checkpoint_mismatch) that names what differs.
void refuse_other_settings(checkpoint::Checkpoint& from, const plan::Job& job);

}  // namespace meshwright::before
