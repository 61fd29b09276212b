// A model on paper: names, kinds, shapes and types of its modules and parameters. Plans are made
// from it; no tensors exist.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/dtype.h"
#include "meshwright/export.h"
#include "meshwright/options.h"

namespace meshwright {

enum class ModuleKind : uint8_t {
  other,
  linear,
  embedding,
  norm,
  rotary,
  list,
  layer,
  experts,
  router
};

struct ModuleOutline {
  std::string name;  // dotted, "" = the model itself
  ModuleKind kind = ModuleKind::other;
  std::string class_name = {};  // "LlamaDecoderLayer"
  int64_t width = 0;            // of a norm: elements it normalises together; 0: hidden_size
  std::shared_ptr<const Later> later = {};
};

// Several projections in one weight, their rows interleaved in memory: for each group part 0's rows
// of that group, part 1's, and so on, so that equal chunks of rows hold whole groups of every part.
// Hugging Face's files hold part 0 whole, then part 1 whole.
struct FusedRows {
  int64_t groups = 1;
  std::vector<int64_t> parts;  // rows of a group, one number a part; groups * their sum = all rows
  bool operator==(const FusedRows&) const = default;
};

// How a parameter lies in a Hugging Face folder, where that is not as it is here.
struct StoredAs {
  // The name that an export gives it, and others that are read as well; empty: its own.
  std::vector<std::string> names = {};
  // The file has columns first, [in, out], as GPT-2's do. Of fused rows the columns of its parts.
  bool transposed = false;
  bool operator==(const StoredAs&) const = default;
};

// What a parameter's elements are before any training, without a folder's weights: each a function
// of run.seed, the parameter's name and its place, the same on every layout.
struct InitialValue {
  enum class Kind : uint8_t { constant, normal, uniform };
  Kind kind = Kind::normal;
  // constant: each element; normal: the standard deviation (mean 0); uniform: from -value to value.
  double value = 0.02;
  std::optional<int64_t> zero_row = std::nullopt;  // all of it: an embedding's padding
  bool operator==(const InitialValue&) const = default;
};

struct ParameterOutline {
  std::string name;            // Hugging Face's name: "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // Linear: [out, in]; Embedding: [rows, dim]
  DType dtype = DType::float32;
  std::optional<FusedRows> fused = std::nullopt;
  bool trainable = true;  // false: frozen
  // A tied weight's second copy, on another stage of a pipeline: of which parameter. Both stay
  // equal; the first one is counted and saved.
  std::string copy_of = {};
  int64_t stage = -1;  // in the outline of a pipeline's rank; -1: of no stage alone
  StoredAs stored = {};
  std::optional<InitialValue> init = std::nullopt;  // absent: see ModelOutline::initial_value()
  std::shared_ptr<const Later> later = {};
};

struct MoeOutline {
  int64_t experts = 0, active_experts = 0, intermediate_size = 0, shared_experts = 0;
};

struct ModelOutline {
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;    // "llama"
  // The class comes from outside the known libraries: no base plan for it.
  bool remote_code = false;
  int64_t hidden_size = 0, layers = 0, attention_heads = 0, key_value_heads = 0, head_dim = 0,
          vocab_size = 0;
  // The head shares the embedding's weight; only the embedding is listed.
  bool tied_embeddings = false;
  std::vector<int64_t> windows;  // of each layer's attention, 0: all positions; empty: all layers 0
  std::optional<MoeOutline> moe;
  std::vector<ModuleOutline> modules;        // pre-order, parents first
  std::vector<ParameterOutline> parameters;  // in registration order, tied ones once
  std::string inner_prefix = "model";        // where the class plan of the inner model applies
  // The model's own plan in Hugging Face style strings: (pattern, style), inner patterns already
  // prefixed; later wins. Of what stands whole among projections that are cut it says what it sees:
  // "replicated_with_grad_allreduce": heads; "replicated": the stream between the blocks.
  StringMap own_tp_plan;
  // What sequence parallelism adds to it, norms of style "sequence_parallel": then what its row
  // styles and its embeddings give is cut along the sequence. Empty: the plan has none.
  StringMap own_sequence_plan = {};
  // Positions that the model was made for; 0: not known. Longer samples are a warning; an error
  // where positions_end, since there are no weights for them.
  int64_t max_positions = 0;
  bool positions_end = false;
  int64_t stages = 1;  // of the pipeline whose rank this is the outline of
  std::shared_ptr<const Later> later = {};

  MESHWRIGHT_API const ModuleOutline* find_module(std::string_view name) const;
  MESHWRIGHT_API const ParameterOutline* find_parameter(std::string_view name) const;
  // Its init; else 0 for what is called `bias`, 1 for what else a norm has, and normal(0, 0.02).
  MESHWRIGHT_API InitialValue initial_value(std::string_view parameter) const;
};

// Dotted name of the module that holds a parameter: everything before the last dot.
MESHWRIGHT_API std::string_view module_of(std::string_view parameter);
MESHWRIGHT_API int64_t element_count(const std::vector<int64_t>& shape);

}  // namespace meshwright
