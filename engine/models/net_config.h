// What a runnable net reads from config.json beyond its names and shapes. Defaults are those of
// transformers' configuration classes. It lies here, and not beside the nets, because planning asks
// it too whether a model can be trained, and planning has no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/decoder_family.h"
#include "meshwright/model/config_json.h"

namespace meshwright::outlines {

struct LayerConfig {
  int64_t window = 0;  // 0: it sees everything before it
  size_t rope = 0;     // in NetConfig::ropes
};

// Beyond the sizes of outlines::MoeFamily.
struct MoeNetConfig {
  bool normalised = true;  // weights of a token sum up to 1
  double balance_coefficient =
      0;  // of transformers' load_balancing_loss_func; 0: it is not part of the loss
};

struct NetConfig {
  DecoderFamily family;
  std::vector<RopeConfig> ropes;  // one; Gemma 3: one for full attention, one for sliding windows
  std::vector<LayerConfig> layers;
  double norm_epsilon = 1e-6;
  bool norms_plus_one = false;  // they scale by 1 + weight
  std::string activation = "silu";
  MoeNetConfig moe;
  double attention_scale = 1;          // of the scores
  double attention_dropout = 0;        // while training
  double embedding_scale = 1;          // in the embedding's dtype
  double logit_softcap = 0;            // c: logits become c tanh(logits / c); 0: they stay
  std::optional<int64_t> padding_row;  // of the embedding: starts as zeros and gets no gradient
  double initializer_range = 0.02;
};

// Throws Error(bad_model_config) with the field at fault, Error(not_in_release) for what can be
// planned but not run.
NetConfig read_net_config(const ConfigJson& config);
// Of each layer's attention, 0: it sees everything before it; empty: all layers do. Throws
// Error(bad_model_config).
std::vector<int64_t> attention_windows(const ConfigJson& config, const std::string& model_type,
                                       int64_t layers);

// The names of activations that run, under which modules::find_activation() has them.
const std::vector<std::string>& known_activations();

inline constexpr int64_t kMaxPositions = int64_t{1} << 32;

}  // namespace meshwright::outlines
