// A run that goes on: from where, what it takes of a checkpoint, and what it says and refuses.
#pragma once

#include <ATen/core/Generator.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/source.h"
#include "engine/job/plan.h"
#include "engine/train/run/saver.h"
#include "meshwright/parallel/group.h"
#include "meshwright/trainer.h"
#include "sdk/base/host/run_lock.h"

namespace meshwright::train {

// What a run is made of that lies in files, as its first attempt found it: a later one that begins
// anew, since nothing was saved yet, must not become another run. What it is, in words, and its
// checksum.
using MadeOf = std::vector<std::pair<std::string, std::string>>;

// `memory`: a descriptor that all attempts share; the first one writes into it. Throws
// Error(checkpoint_mismatch) where something differs from then. Local.
void hold_to_first_attempt(int memory, const MadeOf& made_of);

// Where an application hears that its run's folder was taken over (RunLock::Settings::lost).
struct LostFolder {
  void tell(const Error& why) {
    error = why;
    told = true;
  }
  void throw_if_told() const {
    if (told) throw *error;
  }
  std::optional<Error> error;
  std::atomic<bool> told = false;
};
// Collective, before anything in the run folder is touched. Rank 0 holds it from here on, unless
// its launcher does. `say`: hears of waiting, in place of standard error. `lost`: without it the
// process ends when the folder is lost. Throws Error(run_folder_locked | unknown_launcher |
// output_unwritable) on every rank.
std::unique_ptr<base::RunLock> lock_run(World& world, const std::filesystem::path& run,
                                        const std::function<void(const std::string&)>& say = {},
                                        const std::shared_ptr<LostFolder>& lost = nullptr);

struct ResumePoint {
  std::unique_ptr<checkpoint::Checkpoint> from;  // none: afresh
  bool own = false;                              // it is one of the run's own
  checkpoint::Start start;                       // rank 0
};
// Collective. Rank 0 decides what the run continues; every rank opens it. Throws
// Error(no_checkpoint | bad_checkpoint) on every rank.
ResumePoint begin_run(const Job& job, World& world, const std::filesystem::path& checkpoints);
// Collective, when nothing is left that refuses the run: rank 0 clears its way
// (checkpoint::set_aside) and has back where checkpoints are now that the run does not continue.
// Throws Error(output_unwritable) on every rank.
std::string set_aside(const ResumePoint& beginning, World& world,
                      const std::filesystem::path& checkpoints);
// That all of the run's steps are done, and what to do about it. `epochs`: where they count steps.
std::string finished_text(const std::filesystem::path& checkpoint, int64_t steps, int64_t max_steps,
                          const std::string& command, std::optional<int64_t> epochs = {});
// What checkpoints of a run with adapters leave to the folder `pretrained`, from its beginning on
// or since the checkpoint that it continues; nothing where that is "", or the checkpoint holds the
// whole model. Reads the folder's headers and some of its contents.
void leave_to_base(Saver::Settings& saving, const checkpoint::Checkpoint* from,
                   const std::string& pretrained, const ModelOutline& outline);
// The error, with another checkpoint to continue when this one turned out to be damaged.
Error with_way_on(Error error, const std::filesystem::path& damaged);
// The error of a save that ends a run, with what to do. `ending`: nothing is left to train.
Error unsaved(Error error, bool ending, const std::filesystem::path& checkpoints);
// "continues after step 50: runs/a/checkpoints/step_00000050, saved by ddp on 4 ranks; 32 MB read
// in 0.02 s"
std::string resume_text(const checkpoint::Checkpoint& from, const World& world,
                        const std::string& strategy, double ms);

// What the generators of the plan's rank are seeded with before a step: the same numbers in every
// run. Ranks with the same tokens draw alike, those with others do not (semantics 13.1).
uint64_t generator_seed(uint64_t seed, int64_t step, const plan::JobPlan& plan);
// The generators of this rank, by device: "cpu", and "cuda" where it trains on one.
std::vector<std::pair<std::string, at::Generator>> generators_of(const World& world);
// A copy of the state, as bytes.
at::Tensor state_of(at::Generator generator);

// Fills the trainer from a checkpoint: weights, optimizer, buffers, generators (when there are as
// many ranks, and dp and cp are as large), step. Collective: a rank that throws makes all throw.
// Throws Error(checkpoint_mismatch) when model or optimizer are others, Error(bad_checkpoint).
// Returns whether generators were restored.
bool load_checkpoint(Trainer& trainer, checkpoint::Checkpoint& from);

}  // namespace meshwright::train
