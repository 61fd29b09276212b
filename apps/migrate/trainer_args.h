// What programs on top of Hugging Face's Trainer share: the names of its optimizers and schedules,
// its batches, warm-up and saves, and peft's adapters. Each has these arguments under its own name
// or the Trainer's, and defaults of its own.
#pragma once

#include <optional>

#include "apps/migrate/migrator.h"

namespace meshwright::config {

struct TrainerArgs {
  const char* program;      // "TRL"
  const char* optimizer;    // the key of its name, ...
  const char* scheduler;    // ..., of the schedule's
  const char* local_batch;  // and of a rank's samples
  const char* epochs;
  double lr;              // defaults; 0: it has to be said
  int64_t batch, rounds;  // of local_batch and epochs
  const char* style;      // of the schedule
  bool saves_by_epoch;    // else every 500 steps
  int64_t kept;           // checkpoints; 0: all
  double share;           // of the steps that are a warm-up, at most 100
  int64_t rank, alpha;    // of adapters
  double dropout;
};

void trainer_optimizer(Migrator& m, const TrainerArgs& args);
// The number of steps where the file says it.
std::optional<int64_t> trainer_steps(Migrator& m, const TrainerArgs& args);
void trainer_schedule(Migrator& m, const TrainerArgs& args, std::optional<int64_t> steps);
// `ranks`: data-parallel ones that the file says.
void trainer_batches(Migrator& m, const TrainerArgs& args, int64_t ranks);
void trainer_saves(Migrator& m, const TrainerArgs& args, std::optional<int64_t> steps,
                   bool validates);
// `on`: what switches adapters on; nullptr: nothing does, and their keys say nothing.
void trainer_adapters(Migrator& m, const TrainerArgs& args, const Leaf* on);
// bf16, fp16 and float32: what is computed in. `otherwise`: where the file says none of them.
// Returns the key that says it.
Leaf* trainer_precision(Migrator& m, bool otherwise);
void trainer_other_keys(Migrator& m);

}  // namespace meshwright::config
