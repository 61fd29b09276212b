// What one token of a pass keeps for its backward, layer by layer. Not public.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "footprint_parts.h"
#include "sdk/base/run_memory.h"

namespace meshwright::footprint {

// In elements, but for what adapters drop: bytes.
struct LayerActivations {
  int64_t stage = -1;
  int64_t kept = 0;     // by its forward
  int64_t waiting = 0;  // while gradients of weights wait
  int64_t again = 0;    // of what is computed again at once: the layer, or one block
  int64_t turn = 0;     // of the gradients of its mlp and its output, as its backward begins
  // Beside what is kept and computed again: while its mlp has its gradients, and while attention
  // has them, when the mlp holds nothing any more.
  int64_t mlp_turn = 0, attention_turn = 0;
  int64_t dropped = 0, dropped_again = 0;  // among what is kept, and what is computed again
  int64_t trainable = 0;                   // elements of its parameters
};

// What backward computes again of a layer.
struct Recomputed {
  bool layer = false;                   // all of it, from its input
  bool attention = false, mlp = false;  // these blocks, each from its own input
};

class TokenActivations {
 public:
  TokenActivations(const ShardingRequest& request, bool whole_layers, const MemoryFacts& facts);
  void add_all();
  // Whether they are the same with these facts.
  bool hold_for(const MemoryFacts& facts) const;

  std::vector<LayerActivations> layers;  // through which gradients go
  int64_t outside = 0;                   // of layers
  int64_t scratch = 0;                   // bytes of a thread, whatever its tokens
  int64_t vocabulary_ranks() const { return cut_logits_ ? tp_ : 1; }

 private:
  // Of a token in one layer.
  struct Saved {
    int64_t stream = 0;                     // the layer's input
    int64_t norms = 0;                      // inputs of norms: the residual stream
    int64_t inputs = 0;                     // inputs of attention and mlp
    int64_t attention = 0;                  // inside attention
    int64_t mlp = 0;                        // inside mlp and experts
    int64_t experts = 0, experts_turn = 0;  // of these inside experts, and their gradients
    int64_t outputs = 0;  // of Linears, whose gradients wait where backward is split
    int64_t closing_attention = 0,
            closing_mlp = 0;  // inputs of the Linears that write back to the stream
    int64_t dropped_attention = 0, dropped_mlp = 0;  // bytes
    int64_t norm_count = 0, trainable = 0;
    int64_t all() const;
    int64_t kept(const Recomputed& again) const;
    int64_t waiting() const;
    int64_t together(const Recomputed& again) const;
  };

  int64_t stream(const ModuleOutline& norm) const;
  int64_t of_experts(int64_t width) const;  // elements of a token in rows of such a width
  void close();
  void add(const ParameterOutline& parameter);
  void add_experts(const ParameterOutline& parameter);
  void add_linear(const ParameterOutline& parameter, bool attention);
  void add_factor(const ParameterOutline& parameter, std::string_view linear, bool attention);

  const ShardingRequest& request_;
  const ModelOutline& outline_;
  MemoryFacts facts_;
  ModuleIndex index_;
  CutDims cuts_;
  int64_t tp_, tokens_;
  int64_t rows_ = 0;  // that the experts of this rank get, room for more of them included
  bool whole_layers_, cut_logits_ = false;
  std::set<std::string> sequence_;  // norms that see a part of the sequence
  Saved layer_;
  int64_t up_width_ = 0;  // of the experts' first product in the layer
  std::string_view current_;
  int64_t stage_ = -1;
  std::set<std::string_view> blocks_, norms_;
};

// activation_bytes() where seq_len is known, by what a token keeps of the same request.
int64_t bytes_of_passes(const ShardingRequest& request, const ActivationQuestion& asked,
                        const TokenActivations& token);

}  // namespace meshwright::footprint
