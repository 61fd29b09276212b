// Adapters of a checkpoint: found again, and joined with the weights they lie beside.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/source.h"
#include "engine/checkpoint/weights/export.h"
#include "engine/checkpoint/weights/model_tensors.h"
#include "meshwright/options.h"

namespace meshwright::checkpoint {

// What a checkpoint of a run with adapters carries; peft's, word for word.
inline constexpr std::string_view kAdapterConfig = "adapter_config.json";
using weights::kAdapterWeights;
using weights::kPeftPrefix;

// What kAdapterConfig says of how often adapters count.
struct PeftScale {
  double r = 0, alpha = 0;
  StringMap ranks = {}, alphas = {};  // rank_pattern and alpha_pattern
  bool rank_stabilized = false;
};
// Of the text of such a file, found in `folder`. Throws Error(bad_checkpoint).
PeftScale scale_in(const std::string& config, const std::filesystem::path& folder);
// Whether the checkpoint is of a run with adapters.
bool names_adapters(const Meta& meta);
// nullopt: it is of none. Throws Error(bad_checkpoint).
std::optional<PeftScale> scale_of(Checkpoint& checkpoint);

struct AdapterPair {
  size_t in = 0, out = 0;  // A [r, in] and B [out, r] among Source::tensors()
  double scale = 0;        // W + scale B A
};

struct AdapterSet {
  std::string config;                       // the text of kAdapterConfig
  std::map<size_t, AdapterPair> of_weight;  // by the weight's place among Source::tensors()
};

// nullopt: the source is no checkpoint, or one without adapters. Throws Error(bad_checkpoint) where
// its files do not belong together.
std::optional<AdapterSet> adapters_of(Source& source);

// Weights that trained whole beside the adapters, which an export of these alone lacks: those that
// the base does not hold, or that have an optimizer's state where all weights are here.
std::vector<std::string> trained_whole(Source& source);
// "the adapters alone are not this model: model.norm.weight and 2 others trained whole beside
// them", empty where nothing did.
std::string trained_whole_text(Source& source);

// How much of merged weights is as it was before: a change below half a step of the dtype is lost.
struct MergeCount {
  int64_t elements = 0, unchanged = 0;
};
// "merged the adapters into weights of 1.2 M elements, of which 78.0% are as they were before".
std::string merge_text(const MergeCount& merged);

// A weight and the adapter that joins it, of the same source or another one.
struct Joint {
  Source& weights;
  size_t weight;
  Source& factors;
  AdapterPair pair;
  bool transposed;  // W's file has columns first
};

// W + scale B A, summed in float32 (float64 where W is), rounded once to `dtype`, row by row.
// Shapes must fit. The sources and `count` live as long as the result.
weights::ExportTensor merged_tensor(const Joint& joint, DType dtype, MergeCount& count);

}  // namespace meshwright::checkpoint
