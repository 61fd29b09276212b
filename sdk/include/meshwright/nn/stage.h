// Which part of a model a forward computes. Under pipelines a rank has some of its layers, and runs
// them stage by stage; a model for that asks what to do:
//
//   at::Tensor forward(const at::Tensor& x) {  // ids, or the hidden states of the stage before
//     const StagePart part = current_stage();  // outside of pipelines everything
//     at::Tensor h = part.first ? embed_tokens(x) : x;
//     for (int64_t i = part.begin; i < part.end_of(layer_count); ++i) h = layers[i]->...forward(h);
//     return part.last ? lm_head(norm(h)) : h;
//   }
#pragma once

#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "meshwright/export.h"

namespace meshwright {

struct StagePart {
  bool first = true, last = true;  // with the embedding; with the norm and the head
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();  // layers
  int64_t end_of(int64_t layers) const { return std::min(end, layers); }
};
MESHWRIGHT_API StagePart current_stage();
// Makes `part` that of the forwards run by this thread while it lives.
class MESHWRIGHT_API StageScope {
 public:
  explicit StageScope(const StagePart& part);
  ~StageScope();
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;
  bool asked() const;  // whether somebody has called current_stage() since

 private:
  StagePart outer_;
  bool asked_;  // before
};

// Takes out of the model what has parameters and is neither in nor around one of the modules
// `kept`. Names of the others stay, and so do the places of layers in their list. Parameters that
// go give up their memory. Throws Error(bad_module) for a module that is not there. Local.
MESHWRIGHT_API void keep_modules(torch::nn::Module& model, const std::vector<std::string>& kept);

}  // namespace meshwright
