// What an outline of a model comes to in the terms of the step-time model.
#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>

#include "apps/performance/forecast/forecast.h"
#include "sdk/base/head_of.h"
#include "sdk/base/low_rank.h"

namespace meshwright::forecast {
namespace {

// The weight that makes the logits; nullptr: none is known.
const ParameterOutline* weight_of_head(const ModelOutline& outline) {
  const ModuleOutline* head = head_of(outline);
  if (!outline.tied_embeddings)
    return head == nullptr ? nullptr : outline.find_parameter(head->name + ".weight");
  for (const ParameterOutline& p : outline.parameters)
    if (const ModuleOutline* module = outline.find_module(p.name.substr(0, p.name.rfind('.')));
        module != nullptr && module->kind == ModuleKind::embedding)
      return &p;
  return nullptr;
}

// Of the layers' Linears, by the elements that they read and write for a token: the share of those
// with an adapter beside them.
double adapted_of(const ModelOutline& outline) {
  std::set<std::string_view> linears;
  for (const ParameterOutline& p : outline.parameters)
    if (const auto factor = low_rank_factor(p.name)) linears.insert(factor->linear);
  if (linears.empty()) return 0;
  double all = 0, adapted = 0;
  for (const ParameterOutline& p : outline.parameters) {
    const int64_t number = layer_of(p.name);
    if (number < 0 || number >= outline.layers || p.shape.size() < 2 || low_rank_factor(p.name))
      continue;
    const bool experts = p.shape.size() == 3 && outline.moe;
    const double ends = static_cast<double>(p.shape.back() + p.shape[p.shape.size() - 2]) *
                        (experts ? static_cast<double>(outline.moe->active_experts) : 1);
    all += ends;
    if (linears.contains(std::string_view(p.name).substr(0, p.name.rfind('.')))) adapted += ends;
  }
  return all > 0 ? adapted / all : 0;
}

// Parameters come in the order of the forward: layers before anything that trains have no backward.
steptime::Frozen frozen_of(const ModelOutline& outline) {
  struct Layer {
    bool backward = true;
    double products = 0, frozen = 0;  // elements that a token meets
  };
  std::vector<Layer> layers(static_cast<size_t>(outline.layers));
  const ParameterOutline* head = weight_of_head(outline);
  double all = 0, frozen = 0;
  bool reached = false, before_head = false;
  for (const ParameterOutline& p : outline.parameters) {
    const auto elements = static_cast<double>(element_count(p.shape));
    all += elements;
    frozen += p.trainable ? 0 : elements;
    reached = reached || p.trainable;
    before_head = before_head || (p.trainable && (&p != head || outline.tied_embeddings));
    const int64_t number = layer_of(p.name);
    if (number < 0 || number >= outline.layers) continue;
    Layer& layer = layers[static_cast<size_t>(number)];
    layer.backward = reached;
    if (p.shape.size() < 2) continue;
    const double met = p.shape.size() == 3 && outline.moe
                           ? elements * static_cast<double>(outline.moe->active_experts) /
                                 static_cast<double>(outline.moe->experts)
                           : elements;
    layer.products += met;
    layer.frozen += p.trainable ? 0 : met;
  }
  steptime::Frozen out;
  double products = 0;
  for (const Layer& layer : layers) {
    out.layers += layer.backward ? 0 : 1;
    products += layer.backward ? layer.products : 0;
    out.products += layer.backward ? layer.frozen : 0;
  }
  if (products > 0) out.products /= products;
  if (all > 0) out.parameters = frozen / all;
  out.head = head != nullptr && !head->trainable;
  out.head_input = head != nullptr && !before_head;
  out.adapted = adapted_of(outline);
  return out;
}

double beside_attention(const ModelOutline& outline, const steptime::Shape& shape) {
  double all = 0;
  for (const ParameterOutline& p : outline.parameters)
    if (const int64_t layer = layer_of(p.name);
        layer >= 0 && layer < outline.layers && p.shape.size() >= 2)
      all += static_cast<double>(element_count(p.shape));
  return std::max(0.0, all - shape.layers * shape.attention_parameters());
}

}  // namespace

int64_t layer_of(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.size() <= 9 && std::ranges::all_of(part, [](char c) {
          return std::isdigit(static_cast<unsigned char>(c)) != 0;
        }))
      return std::stoll(part);
    begin = end + 1;
  }
  return -1;
}

steptime::Shape shape_of(const ModelOutline& outline) {
  steptime::Shape out;
  out.hidden = static_cast<double>(outline.hidden_size);
  out.layers = static_cast<double>(outline.layers);
  out.heads = static_cast<double>(outline.attention_heads);
  out.kv_heads = static_cast<double>(outline.key_value_heads);
  out.head_dim = static_cast<double>(outline.head_dim);
  out.vocabulary = static_cast<double>(outline.vocab_size);
  out.tied = outline.tied_embeddings;
  out.gated = false;
  double dense = 0;  // elements of mlps that are no experts
  std::vector<bool> sparse(static_cast<size_t>(outline.layers));
  for (const ParameterOutline& p : outline.parameters) {
    const int64_t layer = layer_of(p.name);
    if (p.name.find("gate_proj") != std::string::npos ||
        p.name.find("gate_up_proj") != std::string::npos)
      out.gated = true;
    if (layer < 0 || layer >= outline.layers) continue;
    if (p.name.find(".experts.") != std::string::npos) sparse[static_cast<size_t>(layer)] = true;
    if (p.name.find(".mlp.") != std::string::npos && p.shape.size() == 2 &&
        p.name.find("expert") == std::string::npos && p.name.find(".gate.") == std::string::npos)
      dense += static_cast<double>(element_count(p.shape));
  }
  const double dense_layers = static_cast<double>(std::ranges::count(sparse, false));
  if (outline.moe) {
    out.gated = true;
    out.experts = static_cast<double>(outline.moe->experts);
    out.experts_a_token = static_cast<double>(outline.moe->active_experts);
    out.expert_ffn = static_cast<double>(outline.moe->intermediate_size);
    out.shared_ffn =
        static_cast<double>(outline.moe->shared_experts * outline.moe->intermediate_size);
    out.dense_layers = dense_layers;
  }
  out.frozen = frozen_of(outline);
  const double with_mlp = outline.moe ? dense_layers : out.layers;
  // A model of other names than Hugging Face's: what its layers' matrices have beside attention.
  if (dense == 0 && !outline.moe) dense = beside_attention(outline, out);
  if (with_mlp > 0) out.ffn = dense / with_mlp / ((out.gated ? 3 : 2) * out.hidden);
  return out;
}

}  // namespace meshwright::forecast
