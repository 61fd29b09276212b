#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "pipeline_lists.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/pipeline.h"

namespace meshwright::footprint {
namespace {

// Linears that write back to the residual stream: their output is an addend and is not kept.
bool closes_block(std::string_view module) {
  std::string_view name = module.substr(module.rfind('.') + 1);
  return name == "o_proj" || name == "dense" || name == "out_proj" || name == "down_proj" ||
         name == "fc2";
}

// Elements of a token in one layer, or in several.
struct Saved {
  int64_t stream = 0;     // the layer's input
  int64_t norms = 0;      // inputs of norms: the residual stream
  int64_t inputs = 0;     // inputs of attention and mlp
  int64_t attention = 0;  // inside attention
  int64_t mlp = 0;        // inside mlp and experts
  int64_t outputs = 0;    // of Linears, whose gradients wait where backward is split
  int64_t closing_attention = 0,
          closing_mlp = 0;  // inputs of the Linears that write back to the stream
  int64_t norm_count = 0;
  int64_t all() const { return plus(norms + inputs + attention, mlp); }
  int64_t kept(const Recomputed& again) const {
    if (again.layer) return stream;
    return plus(norms + inputs + (again.attention ? 0 : attention), again.mlp ? 0 : mlp);
  }
  // While the gradients of weights wait: inputs of the Linears and gradients of their outputs.
  int64_t waiting() const {
    return plus(plus(inputs, outputs), plus(closing_attention, closing_mlp));
  }
  // What exists at once while it is computed again.
  int64_t together(const Recomputed& again) const {
    if (again.layer) return all();
    return std::max(again.attention ? attention : 0, again.mlp ? mlp : 0);
  }
};

bool has_one_of(const ModuleIndex& index, std::string_view layer,
                std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return index.find(std::string(layer) + "." + name) != nullptr;
  });
}

// A run of the schedule; nullopt: one that does not run as it stands.
std::optional<PipelineRun> run_of(const ShardingRequest& request) {
  const PipelineOptions& options = request.config.shared.pipeline;
  const int64_t size = pipeline_size(request), micro_batches = micro_batches_of(request);
  if (!options.schedule_csv.empty())
    return simulate_pipeline(read_actions(options.schedule_csv, size, micro_batches));
  if (options.schedule.empty()) return std::nullopt;
  const PipelineSchedule schedule = parse_schedule(options.schedule);
  const int64_t local = request.outline.stages / size;
  if (local < 1 || !pipeline::can_be_listed(size, local, micro_batches) ||
      !runs_micro_batches(schedule, size, micro_batches))
    return std::nullopt;
  return simulate_pipeline(make_actions(schedule, size, local, micro_batches));
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

}  // namespace meshwright::footprint

namespace meshwright {

namespace {

using namespace footprint;

// Elements that one token keeps, layer by layer.
class TokenActivations {
 public:
  TokenActivations(const ShardingRequest& request, bool whole_layers)
      : request_(request),
        outline_(request.outline),
        index_(request.outline),
        cuts_(request.tp, request.outline),
        tp_(request.mesh.device_mesh ? request.mesh.device_mesh->size("tp") : 1),
        active_(outline_.moe ? outline_.moe->active_experts : 1),
        whole_layers_(whole_layers) {
    if (tp_ == 1) return;
    for (const TpModule& module : resolve_tp_modules(request.tp, outline_)) {
      if (module.style.kind == TpStyleKind::sequence ||
          module.style.kind == TpStyleKind::sequence_all_gather)
        sequence_.insert(module.name);
      cut_logits_ =
          cut_logits_ || (module.name == "lm_head" && module.style.output == TpLayout::shard_last);
    }
  }

  void add_all() {
    for (const ParameterOutline& parameter : outline_.parameters) add(parameter);
    close();
  }

  struct Layer {
    int64_t stage = -1;
    int64_t kept = 0;     // by its forward
    int64_t waiting = 0;  // while gradients of weights wait
    int64_t again = 0;    // of what is computed again at once: the layer, or one block
    int64_t turn = 0;     // of the gradients of its mlp and its output, as its backward begins
  };
  std::vector<Layer> layers;
  int64_t outside = 0;  // of layers
  int64_t vocabulary_ranks() const { return cut_logits_ ? tp_ : 1; }

 private:
  int64_t stream(std::string_view norm) const {
    return outline_.hidden_size / (sequence_.contains(std::string(norm)) ? tp_ : 1);
  }

  void close() {
    if (current_.empty()) return;
    if (layer_.stream == 0) layer_.stream = outline_.hidden_size;
    // Blocks side by side behind one norm (Phi) have one input.
    if (layer_.norm_count > 0)
      layer_.inputs = std::min(layer_.inputs, layer_.norm_count * outline_.hidden_size);
    Recomputed again = recomputed_of(request_, index_, current_, whole_layers_);
    if (index_.has_backward(current_))
      layers.push_back({stage_, layer_.kept(again), layer_.waiting(), layer_.together(again),
                        plus(layer_.mlp, outline_.hidden_size)});
    layer_ = {};
  }

  void add(const ParameterOutline& parameter) {
    std::string_view module = module_of(parameter.name), within = index_.layer_of(module);
    if (within != current_) {
      close();
      current_ = within;
    }
    stage_ = parameter.stage;
    const ModuleOutline* found = index_.find(module);
    if (found == nullptr || parameter.shape.empty()) return;
    bool weight = parameter.name.ends_with(".weight");
    if (within.empty()) {
      if (weight && index_.has_backward(module) && found->kind == ModuleKind::norm)
        outside += stream(module);
      return;
    }
    if (found->kind == ModuleKind::norm && weight && module_of(module) == within) {
      layer_.norms += stream(module);
      ++layer_.norm_count;
      if (layer_.stream == 0) layer_.stream = stream(module);
    } else if (found->kind == ModuleKind::experts && parameter.shape.size() == 3) {
      // Balanced routing brings as many tokens as leave; both widths of an expert's matrices pass
      // by once.
      bool up = parameter.name.find("up") != std::string::npos;
      int64_t width = element_count(parameter.shape) / (std::max<int64_t>(parameter.shape[0], 1) *
                                                        std::max<int64_t>(outline_.hidden_size, 1));
      layer_.mlp = plus(layer_.mlp, times(active_, width + (up ? outline_.hidden_size : 0)));
    } else if (found->kind == ModuleKind::linear && weight && parameter.shape.size() == 2) {
      bool cut = tp_ > 1 && cuts_.find(parameter.name).has_value();
      int64_t width =
          (closes_block(module) ? parameter.shape[1] : parameter.shape[0]) / (cut ? tp_ : 1);
      (in_attention(module.substr(within.size())) ? layer_.attention : layer_.mlp) += width;
      if (closes_block(module))
        (in_attention(module.substr(within.size())) ? layer_.closing_attention
                                                    : layer_.closing_mlp) += width;
      layer_.outputs =
          plus(layer_.outputs, parameter.shape[0] / (cut && !closes_block(module) ? tp_ : 1));
      if (blocks_.insert(module_of(module)).second) layer_.inputs += outline_.hidden_size;
    } else if (const auto factor = low_rank_factor(parameter.name);
               factor && !factor->out && is_added_factor(*found)) {
      // Between the factors of an adapter lie r elements.
      (in_attention(module.substr(within.size())) ? layer_.attention : layer_.mlp) +=
          parameter.shape[0];
    }
  }

  const ShardingRequest& request_;
  const ModelOutline& outline_;
  ModuleIndex index_;
  CutDims cuts_;
  int64_t tp_, active_;
  bool whole_layers_, cut_logits_ = false;
  std::set<std::string> sequence_;  // norms that see a part of the sequence
  Saved layer_;
  std::string_view current_;
  int64_t stage_ = -1;
  std::set<std::string_view> blocks_;
};

// Bytes that one pass of a stage holds, and what its backward needs beside.
struct PassBytes {
  int64_t layers = 0;     // kept by its forward
  int64_t head = 0;       // beside them, on the last stage; without logits
  int64_t logits = 0;     // until its backward, which begins with as many of their gradient
  int64_t waiting = 0;    // instead of all, while gradients of weights wait
  int64_t turn = 0;       // beside the rest, while its layers' backwards run one after the other
  int64_t halved = 0;     // the same of a backward whose weights wait
  int64_t gradients = 0;  // that add up whole from its first backward on
};

using StagePasses = std::map<int64_t, PassBytes>;

// Layers in the order of the model; backward takes them from the end.
StagePasses passes_of_stages(const ModelOutline& outline, const TokenActivations& token,
                             int64_t tokens, int64_t element, int64_t logits, int64_t gradients) {
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
    const int64_t again = times(tokens, plus(layer->again, layer->turn), element),
                  kept = times(tokens, layer->kept, element),
                  waiting = times(tokens, layer->waiting, element);
    pass.layers = plus(pass.layers, kept);
    pass.waiting = plus(pass.waiting, waiting);
    pass.turn = std::max(pass.turn, again);
    pass.halved = std::max(pass.halved, plus(done, again));
    done = plus(done, std::max<int64_t>(waiting - kept, 0));
  }
  if (auto last = out.find(outline.stages - 1); last != out.end()) {
    PassBytes& pass = last->second;
    pass.logits = times(tokens, logits);
    pass.head = times(tokens, token.outside, element);
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
           {&PassBytes::layers, &PassBytes::head, &PassBytes::logits, &PassBytes::waiting,
            &PassBytes::turn, &PassBytes::halved, &PassBytes::gradients})
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
        peak_ = std::max(peak_, now_ + pass.logits);
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
                       int64_t tokens, int64_t element, int64_t logits, int64_t gradients) {
  const ModelOutline& outline = request.outline;
  const StagePasses passes = passes_of_stages(outline, token, tokens, element, logits, gradients);
  const int64_t message = message_bytes(request);
  if (const std::optional<PipelineRun> run = run_of(request)) {
    const auto rank = static_cast<size_t>(request.mesh.device_mesh->coordinate(request.rank, "pp"));
    // The gradients are counted elsewhere.
    return std::max<int64_t>(
        RunWalk(*run, passes, message).fullest(run->steps.at(rank)) - gradients, 0);
  }
  // As if all forwards came first.
  int64_t held = 0, turn = 0;
  for (const auto& [stage, pass] : passes) {
    held = plus(held, plus(pass.layers, plus(pass.head, pass.logits)));
    turn = std::max(turn, std::max(pass.logits, pass.turn));
  }
  const int64_t micro_batches = micro_batches_of(request),
                each = times(std::max<int64_t>(outline.stages / pipeline_size(request), 1),
                             micro_batches);
  // What was sent stays, and one comes.
  return plus(plus(times(held, micro_batches), turn), times(message, plus(each, 1)));
}

}  // namespace

int64_t activation_bytes(const ShardingRequest& request, bool whole_layers, int64_t gradients) {
  const int64_t tokens = tokens_of(request);
  if (tokens == 0) return 0;
  const ModelOutline& outline = request.outline;
  TokenActivations token(request, whole_layers);
  token.add_all();

  // The head's input, which is whole; its logits, and at the turn to backward their gradient beside
  // them.
  int64_t logits = 0;
  if (outline.find_module("lm_head") != nullptr) {
    token.outside += outline.hidden_size;
    const int64_t ranks = token.vocabulary_ranks();
    logits =
        times((outline.vocab_size + ranks - 1) / ranks, dtype_size(precision_of(request).output));
  }
  const std::optional<ContextAttentionPlan> attention = context_attention_of(request);
  const int64_t exchanged = attention ? context_transient(request, *attention) : 0;
  const int64_t element = dtype_size(precision_of(request).param);
  if (pipeline_size(request) > 1)
    return plus(held_in_stages(request, token, tokens, element, logits, gradients),
                times(tokens, exchanged));
  int64_t held = 0, again = 0;
  for (const TokenActivations::Layer& layer : token.layers) {
    held = plus(held, layer.kept);
    again = std::max(again, layer.again);
  }
  // At the turn to backward all of the pass is held, and the gradient of the logits comes.
  held = plus(times(plus(plus(held, again), token.outside), element), times(logits, 2));
  return times(tokens, plus(held, exchanged));
}

}  // namespace meshwright
