// What `evaluate` measures, and on what: checkpoints or a folder of weights, and held-out data.
// Links no LibTorch; the ranks run evaluate::evaluate_rank().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/job/plan.h"
#include "engine/train/preflight/source.h"
#include "meshwright/error.h"

namespace meshwright::evaluate {

// The command line.
struct Request {
  std::string path;  // a run, a checkpoint, a folder of checkpoints or of weights
  bool all = false;  // every checkpoint of the run
  std::vector<std::string> sets;
  std::optional<std::string> data, kind;  // as given
  std::optional<int64_t> seq_len;
  int64_t samples = 0;         // at most so many of the first; 0: all
  int64_t batch = 4;           // samples of a rank at a time
  bool trust_plugins = false;  // those that come with the run's folder
  bool json = false, csv = false;
  bool live = false;  // rank 0's standard error is a terminal
  int width = 80;
  bool colour = false, unicode = true;
};

// What is measured, and how its model is made.
struct Subject {
  generate::Source source;                     // of the newest, where there are several
  std::vector<std::filesystem::path> folders;  // by step; of weights that one folder
  // The configuration of the run that the checkpoints are of, where it lies beside them.
  std::optional<std::filesystem::path> run_config = {};
  std::vector<std::string> plugins = {};  // [plugins] of that run, as --set
  uint64_t seed = 42;                     // run.seed of that run
};
// Throws Error(no_checkpoint | bad_checkpoint | usage | ...), what generate::Source throws, and
// Error(plugin_unreadable | other 4xx) for a plugin that the run loaded and that is no longer
// there.
// `tell` hears of plugins that the run's configuration names elsewhere, before they are loaded.
using Tell = std::function<void(const std::string&)>;
Subject subject_of(const Request& request, const Tell& tell = [](const std::string&) {});

// The configuration that evaluating amounts to: the model, float32 and whole on each rank unless
// --set says otherwise, and the data in [validation_dataset]: what the request names, read as the
// run read its own, else what it was validated with. Throws Error(usage) where neither names any,
// Error(bad_set) for keys that have no part in it.
generate::Settings settings(const Subject& subject, const Request& request, int64_t world_size);

// That configuration, checked; `job` is of settings(). A plugin finds the tokenizer and the chat
// template where the run found them, or with the model. Throws Error(bad_dataset) where the tokens
// are not those of the model, and where files that are JSON by their names would be read as they
// are written without anybody asking for it.
data::DatasetConfig data_of(const plan::Job& job, const Subject& subject, const Request& request);

// The same error without helps that name keys which have no part in evaluating.
Error as_error_of_evaluate(const Error& error);

}  // namespace meshwright::evaluate
