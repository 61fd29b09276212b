#include "token_activations.h"

#include <algorithm>

#include "checkpoint_scope.h"
#include "sdk/base/head_of.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/row_steps.h"

namespace meshwright::footprint {
namespace {

using Where = MemoryFacts::Where;

// Linears that write back to the residual stream: their output is an addend and is not kept.
bool closes_block(std::string_view module) {
  std::string_view name = module.substr(module.rfind('.') + 1);
  return name == "o_proj" || name == "dense" || name == "out_proj" || name == "down_proj" ||
         name == "fc2";
}

bool has_one_of(const ModuleIndex& index, std::string_view layer,
                std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return index.find(std::string(layer) + "." + name) != nullptr;
  });
}

bool computes_floats(const ShardingRequest& request) {
  return request.config.shared.autocast_dtype.value_or(precision_of(request).param) ==
         DType::float32;
}

// Experts of this rank.
int64_t experts_here(const ShardingRequest& request) {
  const int64_t ep = request.mesh.moe_mesh ? request.mesh.moe_mesh->size("ep") : 1;
  return std::max<int64_t>(request.outline.moe->experts / std::max<int64_t>(ep, 1), 1);
}

// Rows that the experts of a rank get where tokens go evenly to all, with the memory for them.
int64_t expert_rows(const ShardingRequest& request, int64_t tokens, const MemoryFacts& facts) {
  if (!request.outline.moe) return tokens;
  const int64_t active = request.outline.moe->active_experts, here = experts_here(request),
                ep = request.mesh.moe_mesh ? request.mesh.moe_mesh->size("ep") : 1;
  // A host that waits for nothing does not know how many come.
  if (facts.where == Where::device && ep > 1 &&
      request.config.shared.moe.dispatcher == TokenDispatcher::all_gather)
    return times(tokens, ep, std::min(active, here));
  int64_t rows = times(tokens, active);
  if (facts.where != Where::host) return rows;
  // Half a step more in the mean: each expert's rows where products are compiled for a size
  // (padded_rows()), and the memory of them all (empty_rows()).
  if (computes_floats(request))
    rows = plus(rows, times(here, row_step(rows / here, kStepsOfProducts) / 2));
  return plus(rows, row_step(rows, kStepsOfMemory) / 2);
}

}  // namespace

Recomputed recomputed_of(const ShardingRequest& request, const ModuleIndex& index,
                         std::string_view layer, bool whole_layers) {
  const SharedOptions& shared = request.config.shared;
  const std::vector<std::string>& scope = shared.activation_checkpointing_scope;
  bool full = shared.activation_checkpointing == ActivationCheckpointing::full;
  if (shared.activation_checkpointing == ActivationCheckpointing::none ||
      !checkpoint_scope::holds(scope, layer))
    return {};
  if (full && checkpoint_scope::whole_layers(whole_layers, scope)) return {.layer = true};
  using namespace checkpoint_scope;
  Recomputed again{.attention = full && has_one_of(index, layer, kAttentions),
                   .mlp = has_one_of(index, layer, kMlps)};
  // A layer with none of the modules that are known is recomputed whole.
  again.layer = !again.attention && !again.mlp && !has_one_of(index, layer, kFirstNorms) &&
                !has_one_of(index, layer, kSecondNorms);
  return again;
}

int64_t TokenActivations::Saved::all() const { return plus(norms + inputs + attention, mlp); }

int64_t TokenActivations::Saved::kept(const Recomputed& again) const {
  if (again.layer) return stream;
  return plus(norms + inputs + (again.attention ? 0 : attention), again.mlp ? 0 : mlp);
}

// Inputs of the Linears and gradients of their outputs.
int64_t TokenActivations::Saved::waiting() const {
  return plus(plus(inputs, outputs), plus(closing_attention, closing_mlp));
}

// What exists at once while it is computed again.
int64_t TokenActivations::Saved::together(const Recomputed& again) const {
  if (again.layer) return all();
  return std::max(again.attention ? attention : 0, again.mlp ? mlp : 0);
}

TokenActivations::TokenActivations(const ShardingRequest& request, bool whole_layers,
                                   const MemoryFacts& facts)
    : request_(request),
      outline_(request.outline),
      facts_(facts),
      index_(request.outline),
      cuts_(request.tp, request.outline),
      tp_(request.mesh.device_mesh ? request.mesh.device_mesh->size("tp") : 1),
      tokens_(std::max<int64_t>(tokens_of(request), 1)),
      rows_(expert_rows(request, tokens_, facts)),
      whole_layers_(whole_layers) {
  if (tp_ == 1) return;
  const ModuleOutline* head = head_of(outline_);
  for (const TpModule& module : resolve_tp_modules(request.tp, outline_)) {
    if (module.style.kind == TpStyleKind::sequence ||
        module.style.kind == TpStyleKind::sequence_all_gather)
      sequence_.insert(module.name);
    cut_logits_ = cut_logits_ || (head != nullptr && module.name == head->name &&
                                  module.style.output == TpLayout::shard_last);
  }
}

void TokenActivations::add_all() {
  for (const ParameterOutline& parameter : outline_.parameters) add(parameter);
  close();
  // The head's input, which is whole.
  if (head_of(outline_) != nullptr) outside += outline_.hidden_size;
}

// Where tensors lie makes a difference to experts alone.
bool TokenActivations::hold_for(const MemoryFacts& facts) const {
  return facts.drops == facts_.drops &&
         (facts.where == facts_.where ||
          std::none_of(
              outline_.modules.begin(), outline_.modules.end(),
              [](const ModuleOutline& module) { return module.kind == ModuleKind::experts; }));
}

int64_t TokenActivations::stream(std::string_view norm) const {
  return outline_.hidden_size / (sequence_.contains(std::string(norm)) ? tp_ : 1);
}

int64_t TokenActivations::of_experts(int64_t width) const { return scaled(rows_, width, tokens_); }

void TokenActivations::close() {
  up_width_ = 0;
  if (current_.empty()) return;
  const int64_t hidden = outline_.hidden_size;
  if (layer_.stream == 0) layer_.stream = hidden;
  // Blocks side by side behind one norm (Phi) have one input.
  if (layer_.norm_count > 0) layer_.inputs = std::min(layer_.inputs, layer_.norm_count * hidden);
  const Recomputed again = recomputed_of(request_, index_, current_, whole_layers_);
  if (index_.has_backward(current_)) {
    const Saved& s = layer_;
    LayerActivations out{.stage = stage_,
                         .kept = s.kept(again),
                         .waiting = s.waiting(),
                         .again = s.together(again),
                         .turn = plus(s.mlp, hidden),
                         .trainable = s.trainable};
    // The gradient of the last product's input takes that input's place.
    out.mlp_turn = plus(plus(s.mlp - s.experts - s.closing_mlp, s.experts_turn), hidden);
    // As many gradients as attention keeps. Of an mlp that is computed again nothing was counted.
    out.attention_turn = s.attention - (again.mlp ? 0 : s.mlp);
    if (again.layer) {
      out.dropped_again = s.dropped_attention + s.dropped_mlp;
    } else {
      out.dropped = (again.attention ? 0 : s.dropped_attention) + (again.mlp ? 0 : s.dropped_mlp);
      out.dropped_again =
          std::max(again.attention ? s.dropped_attention : 0, again.mlp ? s.dropped_mlp : 0);
    }
    layers.push_back(out);
  }
  layer_ = {};
}

void TokenActivations::add(const ParameterOutline& parameter) {
  std::string_view module = module_of(parameter.name), within = index_.layer_of(module);
  if (within != current_) {
    close();
    current_ = within;
  }
  stage_ = parameter.stage;
  if (parameter.trainable && !within.empty())
    layer_.trainable = plus(layer_.trainable, element_count(parameter.shape));
  const ModuleOutline* found = index_.find(module);
  if (found == nullptr || parameter.shape.empty()) return;
  bool weight = parameter.name.ends_with(".weight");
  if (within.empty()) {
    if (weight && index_.has_backward(module) && found->kind == ModuleKind::norm)
      outside += stream(module);
    return;
  }
  const bool attention = in_attention(module.substr(within.size()));
  if (found->kind == ModuleKind::norm && weight && module_of(module) == within) {
    layer_.norms += stream(module);
    ++layer_.norm_count;
    if (layer_.stream == 0) layer_.stream = stream(module);
  } else if (found->kind == ModuleKind::experts && parameter.shape.size() == 3) {
    add_experts(parameter);
  } else if (found->kind == ModuleKind::linear && weight && parameter.shape.size() == 2) {
    add_linear(parameter, attention);
  } else if (found->kind == ModuleKind::router && weight) {
    if (blocks_.insert(module_of(module)).second) layer_.inputs += outline_.hidden_size;
  } else if (const auto factor = low_rank_factor(parameter.name);
             factor && !factor->out && is_added_factor(*found)) {
    add_factor(parameter, factor->linear, attention);
  }
}

// Balanced routing brings as many tokens as leave. Kept are the rows and the first product: what
// lies between the two is made again in backward.
void TokenActivations::add_experts(const ParameterOutline& parameter) {
  const int64_t hidden = outline_.hidden_size;
  const bool up = parameter.name.find("up") != std::string::npos,
             down = parameter.name.find("down") != std::string::npos,
             host = facts_.where == Where::host && computes_floats(request_);
  const int64_t width = element_count(parameter.shape) /
                        (std::max<int64_t>(parameter.shape[0], 1) * std::max<int64_t>(hidden, 1));
  // The gradients of what they give and of what they got; between these, on the host, in scratch.
  int64_t kept = of_experts(down ? 0 : width), turn = of_experts(host ? 0 : width);
  if (up) kept = plus(kept, of_experts(hidden)), turn = plus(turn, of_experts(2 * hidden));
  if (down && !host) turn = plus(turn, of_experts(width));
  layer_.experts = plus(layer_.experts, kept);
  layer_.mlp = plus(layer_.mlp, kept);
  layer_.experts_turn = plus(layer_.experts_turn, turn);
  if (up) up_width_ = width;
  if (!down || !host || up_width_ != 2 * width || !outline_.moe) return;
  // Three buffers of a thread, a quarter larger than the largest call needs: of one expert, and of
  // all rows what the first product's gradient and the second one's input take.
  const int64_t of_one = rows_ / experts_here(request_),
                floats = plus(times(of_one, width), times(rows_, up_width_ + width));
  scratch = std::max(scratch, scaled(times(floats, 4), 5, 4));
}

void TokenActivations::add_linear(const ParameterOutline& parameter, bool attention) {
  const std::string_view module = module_of(parameter.name);
  const bool cut = tp_ > 1 && cuts_.find(parameter.name).has_value(), closes = closes_block(module);
  const int64_t width = parameter.shape[closes ? 1 : 0] / (cut ? tp_ : 1);
  (attention ? layer_.attention : layer_.mlp) += width;
  if (closes) (attention ? layer_.closing_attention : layer_.closing_mlp) += width;
  layer_.outputs = plus(layer_.outputs, parameter.shape[0] / (cut && !closes ? tp_ : 1));
  if (blocks_.insert(module_of(module)).second) layer_.inputs += outline_.hidden_size;
}

// Between the factors of an adapter lie r elements. What it drops of its input takes a byte an
// element, of this rank's columns; or of its positions where the factor gathers the sequence.
void TokenActivations::add_factor(const ParameterOutline& parameter, std::string_view linear,
                                  bool attention) {
  (attention ? layer_.attention : layer_.mlp) += parameter.shape[0];
  if (!facts_.drops || parameter.shape.size() < 2) return;
  const std::optional<int64_t> dim =
      tp_ > 1 ? cuts_.find(std::string(linear) + ".weight") : std::nullopt;
  const bool part = dim == 1 || (dim && !sequence_.empty());
  (attention ? layer_.dropped_attention : layer_.dropped_mlp) +=
      parameter.shape[1] / (part ? tp_ : 1);
}

}  // namespace meshwright::footprint
