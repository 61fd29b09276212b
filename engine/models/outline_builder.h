// Builds a ModelOutline in the order in which the real model registers its modules and parameters.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "meshwright/outline.h"

namespace meshwright::outlines {

// Pairs of pattern and style.
using PlanRows = std::vector<std::pair<const char*, const char*>>;

class OutlineBuilder {
 public:
  OutlineBuilder(std::string architecture, std::string model_type, DType storage);

  void module(const std::string& name, ModuleKind kind, const std::string& class_name);
  void parameter(const std::string& name, std::vector<int64_t> shape);
  void linear(const std::string& name, int64_t in, int64_t out,
              bool bias = false);  // weight [out, in]
  // Several projections in one weight.
  void fused_linear(const std::string& name, int64_t in, FusedRows rows);
  void embedding(const std::string& name, int64_t rows, int64_t dim,
                 const std::string& class_name = "Embedding");
  void norm(const std::string& name, int64_t size, const std::string& class_name,
            bool bias = false);
  // Hugging Face style entries of the inner model ("layers.*.mlp.up_proj"), prefixed with
  // inner_prefix.
  void own_plan(const PlanRows& inner);

  ModelOutline outline;

 private:
  DType storage_;
};

}  // namespace meshwright::outlines
