#include "token_activations.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "pipeline_parts.h"
#include "sdk/base/head_of.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/row_steps.h"
#include "sdk/base/shared_schemas.h"

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
  return request.config.shared().autocast_dtype.value_or(precision_of(request).param) ==
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
      request.config.shared().moe.dispatcher == TokenDispatcher::all_gather)
    return times(tokens, ep, std::min(active, here));
  int64_t rows = times(tokens, active);
  if (facts.where != Where::host) return rows;
  // Half a step more in the mean: each expert's rows where products are compiled for a size
  // (padded_rows()), and the memory of them all (empty_rows()).
  if (computes_floats(request))
    rows = plus(rows, times(here, row_step(rows / here, kStepsOfProducts) / 2));
  return plus(rows, row_step(rows, kStepsOfMemory) / 2);
}

// `whole_layers`: the strategy recomputes layers as a whole under "full"; else their blocks and
// norms, one by one.
Recomputed recomputed_of(const ShardingRequest& request, const ModuleIndex& index,
                         std::string_view layer, bool whole_layers) {
  const SharedOptions& shared = request.config.shared();
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

}  // namespace

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

int64_t TokenActivations::stream(const ModuleOutline& norm) const {
  return (norm.width > 0 ? norm.width : outline_.hidden_size) /
         (sequence_.contains(norm.name) ? tp_ : 1);
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
  // A norm that says its width need not call its parameter `weight`.
  const bool norm = found->kind == ModuleKind::norm && (weight || found->width > 0) &&
                    norms_.insert(module).second;
  if (within.empty()) {
    if (norm && index_.has_backward(module)) outside += stream(*found);
    return;
  }
  const bool attention = in_attention(module.substr(within.size()));
  if (norm && module_of(module) == within) {
    layer_.norms += stream(*found);
    ++layer_.norm_count;
    if (layer_.stream == 0) layer_.stream = stream(*found);
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

namespace meshwright {

// Bytes that passes keep for backward, at the fullest moment of a step.

namespace {

using namespace footprint;

using Run = std::shared_ptr<const PipelineRun>;

// A run of the schedule; none: one that does not run as it stands.
Run run_of(const ShardingRequest& request) {
  const PipelineOptions& options = request.config.shared().pipeline;
  const int64_t size = pipeline_size(request), micro_batches = micro_batches_of(request);
  if (!options.schedule_csv.empty())
    return std::make_shared<PipelineRun>(
        simulate_pipeline(read_actions(options.schedule_csv, size, micro_batches)));
  if (options.schedule.empty()) return nullptr;
  const PipelineSchedule schedule = parse_schedule(options.schedule);
  const int64_t local = request.outline.stages / size;
  if (local < 1 || !pipeline::can_be_listed(size, local, micro_batches) ||
      !runs_micro_batches(schedule, size, micro_batches))
    return nullptr;
  return pipeline::run_of_schedule(schedule, size, local, micro_batches);
}

// Bytes that one pass of a stage holds, and what its backward needs beside.
struct PassBytes {
  int64_t layers = 0;     // kept by its forward
  int64_t head = 0;       // beside them, on the last stage; without logits
  int64_t logits = 0;     // until its backward
  int64_t loss = 0;       // beside all of it as that begins: the gradient of the logits
  int64_t waiting = 0;    // instead of all, while gradients of weights wait
  int64_t turn = 0;       // beside the rest, while its layers' backwards run one after the other
  int64_t halved = 0;     // the same of a backward whose weights wait
  int64_t gradients = 0;  // that add up whole from its first backward on
};

using StagePasses = std::map<int64_t, PassBytes>;

// Of a pass: its tokens, bytes of an element, and of a token's logits and their gradient.
struct PassSizes {
  int64_t tokens = 0, element = 0, logits = 0, loss = 0;
  int64_t of(int64_t elements, int64_t dropped = 0) const {
    return times(tokens, plus(times(elements, element), dropped));
  }
};

// Layers in the order of the model; backward takes them from the end.
StagePasses passes_of_stages(const ModelOutline& outline, const TokenActivations& token,
                             const PassSizes& sizes, int64_t gradients) {
  StagePasses out;
  int64_t trainable = 0;
  for (const ParameterOutline& p : outline.parameters)
    if (p.trainable) trainable = plus(trainable, element_count(p.shape));
  for (const ParameterOutline& p : outline.parameters) {
    PassBytes& pass = out[std::max<int64_t>(p.stage, 0)];
    if (p.trainable)
      pass.gradients += static_cast<int64_t>(static_cast<double>(gradients) *
                                             static_cast<double>(element_count(p.shape)) /
                                             static_cast<double>(trainable));
  }
  std::map<int64_t, int64_t> more;  // while weights wait: of the layers that are done
  for (auto layer = token.layers.rbegin(); layer != token.layers.rend(); ++layer) {
    PassBytes& pass = out[std::max<int64_t>(layer->stage, 0)];
    int64_t& done = more[std::max<int64_t>(layer->stage, 0)];
    const int64_t again = sizes.of(plus(layer->again, layer->turn), layer->dropped_again),
                  kept = sizes.of(layer->kept, layer->dropped),
                  waiting = sizes.of(layer->waiting, layer->dropped);
    pass.layers = plus(pass.layers, kept);
    pass.waiting = plus(pass.waiting, waiting);
    pass.turn = std::max(pass.turn, again);
    pass.halved = std::max(pass.halved, plus(done, again));
    done = plus(done, std::max<int64_t>(waiting - kept, 0));
  }
  if (auto last = out.find(outline.stages - 1); last != out.end()) {
    PassBytes& pass = last->second;
    pass.logits = times(sizes.tokens, sizes.logits);
    pass.loss = times(sizes.tokens, sizes.loss);
    pass.head = sizes.of(token.outside);
    // The head's weights wait with its input and the gradient of the logits.
    pass.waiting = plus(pass.waiting, plus(pass.head, pass.logits));
  }
  return out;
}

// What a rank holds while it goes through its steps, as the runner does.
class RunWalk {
 public:
  // `message`: bytes of one between two stages.
  RunWalk(const PipelineRun& run, StagePasses passes, int64_t message)
      : slots_(run.slots), passes_(std::move(passes)), sent_(2 * run.slots.size()) {
    size_t most_steps = 0;
    for (const std::vector<PipelineStep>& steps : run.steps)
      most_steps = std::max(most_steps, steps.size());
    // Sums and differences of these do not overflow.
    const int64_t most = INT64_MAX / (16 * (static_cast<int64_t>(most_steps) + 1));
    for (auto& [stage, pass] : passes_)
      for (int64_t PassBytes::* bytes :
           {&PassBytes::layers, &PassBytes::head, &PassBytes::logits, &PassBytes::loss,
            &PassBytes::waiting, &PassBytes::turn, &PassBytes::halved, &PassBytes::gradients})
        pass.*bytes = std::min(pass.*bytes, most);
    message_ = std::min(message, most);
  }

  // At the fullest moment, the gradients that have begun to add up among them.
  int64_t fullest(const std::vector<PipelineStep>& steps) {
    take_messages(steps);
    for (const PipelineStep& step : steps) {
      if (step.kind == PipelineStep::Kind::compute) compute(step.action);
      if (step.kind == PipelineStep::Kind::send) send(step.action);
    }
    return peak_;
  }

 private:
  using Kind = PipelineAction::Kind;

  // Memory of messages that come is used again, in this run and in the next: as much as is needed
  // at once. What came for a forward is the input that its first layer keeps.
  void take_messages(const std::vector<PipelineStep>& steps) {
    std::map<std::pair<int64_t, int64_t>, int64_t> held;  // by stage and micro-batch
    std::set<int64_t> fed;
    int64_t taken = 0, most = 0;
    for (const PipelineStep& step : steps) {
      const std::pair pass(step.action.stage, step.action.micro_batch);
      if (step.kind == PipelineStep::Kind::receive) {
        if (step.action.kind == Kind::forward) fed.insert(step.action.stage);
        ++held[pass];
        most = std::max(most, ++taken);
      } else if (step.kind == PipelineStep::Kind::compute &&
                 (step.action.kind == Kind::backward || step.action.kind == Kind::weight)) {
        taken -= std::exchange(held[pass], 0);
      }
    }
    for (int64_t stage : fed) {
      int64_t& layers = passes_[stage].layers;
      layers = std::max<int64_t>(layers - message_, 0);
    }
    now_ = peak_ = most * message_;
  }

  // As many as never make the sender wait are kept alive, until the end of the run.
  void send(const PipelineAction& made) {
    const bool there = made.kind == Kind::forward;
    const auto boundary = static_cast<size_t>(made.stage - (there ? 0 : 1));
    int64_t& sent = sent_[2 * boundary + (there ? 0 : 1)];
    if (sent >= std::max<int64_t>(slots_[boundary], 1)) return;
    ++sent;
    now_ += message_;
    peak_ = std::max(peak_, now_);
  }

  void compute(const PipelineAction& action) {
    PassBytes& pass = passes_[action.stage];
    const bool halved = action.kind == Kind::input;
    switch (action.kind) {
      case Kind::forward:
        now_ += pass.layers + pass.head + pass.logits;
        break;
      case Kind::backward:
      case Kind::input:
        peak_ = std::max(peak_, now_ + pass.loss);
        // The head is done, and layers follow.
        if (!halved) now_ -= pass.logits + pass.head;
        peak_ = std::max(peak_, now_ + (halved ? pass.halved : pass.turn));
        now_ += halved ? pass.waiting - pass.layers - pass.head - pass.logits : -pass.layers;
        break;
      case Kind::weight:
        now_ -= pass.waiting;
        break;
    }
    if (action.kind == Kind::backward || action.kind == Kind::weight)
      now_ += std::exchange(pass.gradients, 0);
    peak_ = std::max(peak_, now_);
  }

  const std::vector<int64_t>& slots_;  // [stage]
  StagePasses passes_;
  std::vector<int64_t> sent_;  // messages kept alive, by boundary and way
  int64_t message_ = 0, now_ = 0, peak_ = 0;
};

// In stages, with what is on its way between them.
int64_t held_in_stages(const ShardingRequest& request, const TokenActivations& token,
                       const PassSizes& sizes, int64_t gradients) {
  const ModelOutline& outline = request.outline;
  const StagePasses passes = passes_of_stages(outline, token, sizes, gradients);
  const int64_t message = message_bytes(request);
  if (const Run run = run_of(request)) {
    const auto rank = static_cast<size_t>(request.mesh.device_mesh->coordinate(request.rank, "pp"));
    // The gradients are counted elsewhere.
    return std::max<int64_t>(
        RunWalk(*run, passes, message).fullest(run->steps.at(rank)) - gradients, 0);
  }
  // As if all forwards came first.
  int64_t held = 0, turn = 0;
  for (const auto& [stage, pass] : passes) {
    held = plus(held, plus(pass.layers, plus(pass.head, pass.logits)));
    turn = std::max(turn, std::max(pass.loss, pass.turn));
  }
  const int64_t micro_batches = micro_batches_of(request),
                each = times(std::max<int64_t>(outline.stages / pipeline_size(request), 1),
                             micro_batches);
  // What was sent stays, and one comes.
  return plus(plus(times(held, micro_batches), turn), times(message, plus(each, 1)));
}

// Gradients that come with the backward of what they are of, `coming` bytes in all, shared out by
// the elements that train.
class ComingGradients {
 public:
  ComingGradients(const ModelOutline& outline, int64_t coming) : coming_(coming) {
    for (const ParameterOutline& p : outline.parameters)
      if (p.trainable) all_ = plus(all_, element_count(p.shape));
  }
  int64_t of(int64_t trainable) const {
    return all_ == 0
               ? 0
               : static_cast<int64_t>(static_cast<double>(coming_) *
                                      static_cast<double>(trainable) / static_cast<double>(all_));
  }
  int64_t outside(const std::vector<LayerActivations>& layers) const {
    int64_t inside = 0;
    for (const LayerActivations& layer : layers) inside = plus(inside, layer.trainable);
    return of(std::max<int64_t>(all_ - inside, 0));
  }

 private:
  int64_t coming_, all_ = 0;
};

// Of one pass without stages, `exchange` bytes a token while attention has its gradients; with the
// gradients that have come by then.
int64_t fullest_of_pass(const ShardingRequest& request, const TokenActivations& token,
                        const PassSizes& sizes, int64_t exchange, int64_t coming) {
  const std::vector<LayerActivations>& layers = token.layers;
  std::vector<int64_t> held;  // by the layers up to each
  int64_t all = 0;
  for (const LayerActivations& layer : layers)
    held.push_back(all = plus(all, sizes.of(layer.kept, layer.dropped)));
  const int64_t hidden = sizes.of(request.outline.hidden_size);
  // The gradient of the logits comes to them, and then takes their place beside the one of the
  // head's input.
  int64_t peak = plus(plus(all, sizes.of(token.outside)), times(sizes.tokens, sizes.logits));
  if (sizes.logits > 0) peak = plus(peak, std::max(times(sizes.tokens, sizes.loss), hidden));
  // Backward, from the last layer on.
  const ComingGradients gradients(request.outline, coming);
  int64_t come = gradients.outside(layers);
  for (size_t i = layers.size(); i-- > 0;) {
    const LayerActivations& layer = layers[i];
    come = plus(come, gradients.of(layer.trainable));
    const int64_t turn = std::max(sizes.of(layer.mlp_turn), plus(sizes.of(layer.attention_turn),
                                                                 times(sizes.tokens, exchange)));
    peak = std::max(
        peak, plus(plus(held[i], sizes.of(layer.again, layer.dropped_again)), plus(turn, come)));
  }
  return std::max(peak, plus(coming, hidden));
}

}  // namespace

namespace footprint {

int64_t bytes_of_passes(const ShardingRequest& request, const ActivationQuestion& asked,
                        const TokenActivations& token) {
  const int64_t tokens = tokens_of(request);
  const ModelOutline& outline = request.outline;
  const MixedPrecision mp = precision_of(request);
  PassSizes sizes{.tokens = tokens, .element = dtype_size(mp.param)};
  // The head's logits.
  if (head_of(outline) != nullptr) {
    const int64_t ranks = token.vocabulary_ranks(),
                  words = (outline.vocab_size + ranks - 1) / ranks;
    sizes.logits = sizes.loss = times(words, dtype_size(mp.output));
    // On a device the loss writes the gradient over them, in rows of whole 16 bytes
    // (sdk/nn/loss.cpp); where they were cast, the one of what was cast comes beside that.
    constexpr int64_t kPack = 16;
    if (asked.facts.where == MemoryFacts::Where::device && sizes.logits % kPack == 0)
      sizes.loss = mp.output == mp.param ? 0 : times(words, dtype_size(mp.param));
  }
  const std::optional<ContextAttentionPlan> attention = context_attention_of(request);
  const ContextHeld exchanged = attention ? context_transient(request, *attention) : ContextHeld{};
  if (pipeline_size(request) > 1)
    return plus(held_in_stages(request, token, sizes, asked.gradients),
                times(tokens, exchanged.all()));
  const int64_t fullest = fullest_of_pass(request, token, sizes, exchanged.backward, asked.coming);
  const int64_t held = fullest == INT64_MAX ? fullest : fullest - asked.coming;
  return plus(held, plus(times(tokens, exchanged.room), token.scratch));
}

}  // namespace footprint

int64_t activation_bytes(const ShardingRequest& request, const ActivationQuestion& asked) {
  if (tokens_of(request) == 0) return 0;
  TokenActivations token(request, asked.whole_layers, asked.facts);
  token.add_all();
  return bytes_of_passes(request, asked, token);
}

int64_t activation_bytes(const ShardingRequest& request, bool whole_layers, int64_t gradients) {
  return activation_bytes(request, {.whole_layers = whole_layers, .gradients = gradients});
}

}  // namespace meshwright
