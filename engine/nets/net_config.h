// What a runnable net reads from config.json beyond its names and shapes. Defaults are those of transformers' configuration classes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/decoder_family.h"

namespace meshwright::nets {

enum class RopeType : uint8_t { standard, linear, dynamic, llama3, longrope };

struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 10000, factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  int64_t original_positions = 0;                              // llama3, longrope
  std::vector<double> short_factors, long_factors;             // longrope: dim / 2 each, for sequences up to original_positions and beyond
  double attention_factor = 1;                                 // longrope: cos and sin are multiplied by it
  int64_t max_positions = 0;
  int64_t dim = 0;  // the leading part of a head that turns: head_dim unless partial_rotary_factor says less
};

struct LayerConfig {
  int64_t window = 0;  // 0: it sees everything before it
  size_t rope = 0;     // in NetConfig::ropes
};

// Beyond the sizes of models::MoeFamily.
struct MoeNetConfig {
  bool normalised = true;          // weights of a token sum up to 1
  double balance_coefficient = 0;  // of transformers' load_balancing_loss_func; 0: it is not part of the loss
};

struct NetConfig {
  models::DecoderFamily family;
  std::vector<RopeConfig> ropes;  // one; Gemma 3: that of full attention, that of sliding windows
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

// Throws Error(bad_model_config) with the field at fault, Error(not_in_release) for families and RoPE variants that do not run.
NetConfig read_net_config(const models::ConfigJson& config);

// Its rotary embeddings alone; `max_positions`: the family's default.
std::vector<RopeConfig> read_ropes(const models::ConfigJson& config, const models::DecoderFamily& family, int64_t max_positions);

inline constexpr int64_t kMaxPositions = int64_t{1} << 32;

}  // namespace meshwright::nets
