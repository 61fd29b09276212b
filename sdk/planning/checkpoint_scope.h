// Which layers and which of their modules activation checkpointing meets: one answer for the plan
// and the run. Not public, all inline.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::checkpoint_scope {

// What a list of layers belongs to, by the words of its dotted name.
inline std::string_view part_of(std::string_view name) {
  auto has = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](const char* word) { return name.find(word) != std::string_view::npos; });
  };
  if (has({"vision", "visual", "image", "vit."})) return "vision";
  if (has({"audio", "speech", "sound"})) return "audio";
  return "language";
}

// Whether activation_checkpointing_scope, as parsed, holds a layer.
inline bool holds(const std::vector<std::string>& scope, std::string_view layer) {
  std::string_view part = part_of(layer);
  return std::any_of(scope.begin(), scope.end(), [&](const std::string& wanted) {
    return wanted == "all" || wanted == part || (wanted == "multimodal" && part != "language");
  });
}

// Layers are recomputed whole only where the strategy does so and the scope is everything; else
// their modules are, one by one.
inline bool whole_layers(bool strategy_does, const std::vector<std::string>& scope) {
  return strategy_does && scope == std::vector<std::string>{"all"};
}

// Names of the modules of a layer that are recomputed one by one.
inline constexpr std::initializer_list<const char*> kMlps = {"mlp", "feed_forward", "ffn"};
inline constexpr std::initializer_list<const char*> kFirstNorms = {
    "input_layernorm", "attention_norm", "layer_norm1", "norm1"};
inline constexpr std::initializer_list<const char*> kSecondNorms = {
    "post_attention_layernorm", "ffn_norm", "layer_norm2", "norm2"};
inline constexpr std::initializer_list<const char*> kAttentions = {"self_attn", "attention", "attn",
                                                                   "linear_attn"};

}  // namespace meshwright::checkpoint_scope
