// Small models on paper, made by hand so that nothing but the SDK is needed. Not for use outside
// the kit.
#pragma once

#include <string>
#include <string_view>

#include "meshwright/outline.h"

namespace meshwright::conformance {

// Odd on purpose: the vocabulary divides by nothing, the layers by three.
struct ModelShape {
  std::string architecture = "LlamaForCausalLM";
  int64_t hidden = 64, ffn = 176, heads = 8, kv_heads = 4, layers = 3, vocab = 257;
  bool tied = false;
  int64_t experts =
      0;  // above 0: each layer has a router and this many experts in place of its MLP
};

ModelOutline make_outline(const ModelShape& shape);

}  // namespace meshwright::conformance
