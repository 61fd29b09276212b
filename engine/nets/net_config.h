// What a runnable net reads from config.json beyond its names and shapes. Defaults are those of transformers' configuration classes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/decoder_family.h"

namespace meshwright::nets {

enum class RopeType : uint8_t { standard, linear, dynamic, llama3 };

struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 10000, factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  int64_t original_positions = 0;                              // llama3
  int64_t max_positions = 0;
  int64_t head_dim = 0;
};

struct NetConfig {
  models::DecoderFamily family;
  RopeConfig rope;
  double norm_epsilon = 1e-6;
  std::string activation = "silu";
  double attention_dropout = 0;        // while training
  std::vector<int64_t> windows;        // a layer's sliding window, 0 = it sees everything before it
  std::optional<int64_t> padding_row;  // of the embedding: starts as zeros and gets no gradient
  double initializer_range = 0.02;
};

// Throws Error(bad_model_config) with the field at fault, Error(not_in_release) for families and RoPE variants that do not run.
NetConfig read_net_config(const models::ConfigJson& config);

}  // namespace meshwright::nets
