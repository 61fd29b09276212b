#include "engine/models/outline_builder.h"

#include <numeric>
#include <string_view>

namespace meshwright::outlines {

OutlineBuilder::OutlineBuilder(std::string architecture, std::string model_type, DType storage)
    : storage_(storage) {
  outline.architecture = std::move(architecture);
  outline.model_type = std::move(model_type);
}

void OutlineBuilder::module(const std::string& name, ModuleKind kind,
                            const std::string& class_name) {
  outline.modules.push_back({name, kind, class_name});
}

void OutlineBuilder::parameter(const std::string& name, std::vector<int64_t> shape) {
  element_count(shape);  // refuses what 64 bits cannot count
  outline.parameters.push_back({name, std::move(shape), storage_});
}

void OutlineBuilder::linear(const std::string& name, int64_t in, int64_t out, bool bias) {
  module(name, ModuleKind::linear, "Linear");
  parameter(name + ".weight", {out, in});
  if (bias) parameter(name + ".bias", {out});
}

void OutlineBuilder::fused_linear(const std::string& name, int64_t in, FusedRows rows) {
  linear(name, in, rows.groups * std::accumulate(rows.parts.begin(), rows.parts.end(), int64_t{0}));
  outline.parameters.back().fused = std::move(rows);
}

void OutlineBuilder::embedding(const std::string& name, int64_t rows, int64_t dim,
                               const std::string& class_name) {
  module(name, ModuleKind::embedding, class_name);
  parameter(name + ".weight", {rows, dim});
}

void OutlineBuilder::norm(const std::string& name, int64_t size, const std::string& class_name,
                          bool bias) {
  module(name, ModuleKind::norm, class_name);
  parameter(name + ".weight", {size});
  if (bias) parameter(name + ".bias", {size});
}

void OutlineBuilder::own_plan(const PlanRows& inner) {
  outline.own_tp_plan.emplace_back("lm_head", "colwise_gather_output");
  bool embedding = false;
  for (const auto& [pattern, style] : inner) {
    embedding = embedding || std::string_view(pattern) == "embed_tokens";
    outline.own_tp_plan.emplace_back(outline.inner_prefix + "." + pattern, style);
  }
  // The head's weight is the embedding's: splitting one splits the other.
  if (outline.tied_embeddings && !embedding)
    outline.own_tp_plan.emplace_back(outline.inner_prefix + ".embed_tokens", "embedding_rowwise");
}

}  // namespace meshwright::outlines
