// Layouts and small models for tests of pipelines. Before doctest.h: LibTorch has a CHECK of its
// own.
#pragma once

#include <string>
#include <vector>

#include "engine/train/run/tests/context_layouts.h"

namespace meshwright {

inline const SmallModel kStaged{
    "staged", "LlamaForCausalLM",
    "llama",  32,
    4,        2,
    64,       R"(, "num_hidden_layers": 4, "tie_word_embeddings": false)"};
inline const SmallModel kDeep{"deep",  "LlamaForCausalLM",
                              "llama", 32,
                              4,       2,
                              64,      R"(, "num_hidden_layers": 8, "tie_word_embeddings": false)"};

inline const std::string kPp2 = "distributed.pp_size=2", kPp4 = "distributed.pp_size=4",
                         kEp2 = "distributed.ep_size=2";

inline std::string schedule(const std::string& name) {
  return "distributed.pipeline.pp_schedule=\"" + name + "\"";
}
inline const std::vector<std::string> kSchedules = {
    "GPipe",         "1F1B",     "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble",
    "ZBVZeroBubble", "DualPipeV"};

// Micro-batches of so many samples, whatever the mesh; the truth adds up as many.
inline Layout staged_layout(const std::string& model, const OnMesh& mesh,
                            const std::vector<std::string>& more = {}, int64_t rows = 1) {
  Layout out{"fsdp2",
             mesh.ranks,
             {"optimizer.eps=1e-5", "step_scheduler.local_batch_size=" + std::to_string(rows),
              "distributed.pipeline.pp_microbatch_size=" + std::to_string(rows)},
             model};
  for (const std::vector<std::string>* sets : {&mesh.sets, &more})
    out.sets.insert(out.sets.end(), sets->begin(), sets->end());
  return out;
}

// The same ranks, each with all layers: half as many.
inline Layout without_stages(Layout layout) {
  layout.ranks /= 2;
  std::erase(layout.sets, kPp2);
  return layout;
}

// Where two curves are not the same bits.
inline std::string unlike(const Curve& curve, const Curve& truth) {
  std::string out;
  if (curve.losses != truth.losses) out += "losses; ";
  if (!(farthest(curve.norms, truth.norms) < 1e-12)) out += "norms; ";
  if (curve.parameters.size() != truth.parameters.size()) out += "another number of parameters; ";
  for (const auto& [name, tensor] : truth.parameters)
    if (!curve.parameters.contains(name) || !curve.parameters.at(name).equal(tensor))
      out += name + "; ";
  return out;
}

}  // namespace meshwright
