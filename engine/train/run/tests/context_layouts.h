// Layouts and small models for tests of context parallelism. Before doctest.h: LibTorch has a CHECK
// of its own.
#pragma once

#include <string>
#include <vector>

#include "engine/train/run/tests/curves.h"

namespace meshwright {

inline const std::string kCp2 = "distributed.cp_size=2", kCp3 = "distributed.cp_size=3",
                         kCp4 = "distributed.cp_size=4",
                         kGather = "distributed.context.method=\"all_gather\"",
                         kRing = "distributed.context.method=\"ring\"",
                         kUlysses = "distributed.context.method=\"ulysses\"";

// One micro-batch a step, of as many samples as there are on one rank.
inline Layout context_layout(const std::string& model, const OnMesh& mesh,
                             const std::vector<std::string>& more = {}) {
  int64_t sharing = 1;  // ranks that have the same samples
  for (const std::string& set : mesh.sets)
    sharing *= set == kTp2 || set == kCp2   ? 2
               : set == kCp3                ? 3
               : set == kCp4 || set == kTp4 ? 4
                                            : 1;
  Layout out{"fsdp2",
             mesh.ranks,
             {"optimizer.eps=1e-5",
              "step_scheduler.local_batch_size=" + std::to_string(kBatch * sharing / mesh.ranks)},
             model};
  for (const std::vector<std::string>* sets : {&mesh.sets, &more})
    out.sets.insert(out.sets.end(), sets->begin(), sets->end());
  return out;
}

// `rows` samples of `length` tokens and the one behind them.
inline at::Tensor samples_of(int64_t first, int64_t rows, int64_t length, int64_t vocabulary) {
  const int64_t pieces = length / (kLength + 1) + 1;
  at::Tensor ids = at::empty({rows, pieces * (kLength + 1)}, at::kLong);
  for (int64_t piece = 0; piece < rows * pieces; ++piece)
    fill_sample(first * pieces + piece, vocabulary,
                ids.mutable_data_ptr<int64_t>() + piece * (kLength + 1));
  return ids.narrow(1, 0, length + 1).contiguous();
}

inline const SmallModel kGrouped{"grouped", "LlamaForCausalLM", "llama", 32, 4, 2, 64, ""};
inline const SmallModel kMistral{"mistral", "MistralForCausalLM",      "mistral", 32, 4, 2,
                                 64,        R"(, "sliding_window": 3)"};
inline const SmallModel kLongRope{
    "longrope",
    "Phi3ForCausalLM",
    "phi3",
    32,
    4,
    4,
    64,
    R"(, "pad_token_id": null, "original_max_position_embeddings": 4, "rope_scaling": {"type": "longrope",
"short_factor": [1.0, 1.0, 1.0, 1.0], "long_factor": [1.0, 1.5, 2.0, 4.0]})"};
inline const SmallModel kBalanced{
    "balanced",
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    32,
    4,
    4,
    64,
    R"(, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": true,
"output_router_logits": true, "router_aux_loss_coef": 0.02, "mlp_only_layers": [], "intermediate_size": 40)"};

}  // namespace meshwright
