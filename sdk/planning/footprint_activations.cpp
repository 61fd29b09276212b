#include <algorithm>
#include <set>
#include <string>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "pipeline_lists.h"
#include "pipeline_memory.h"
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
  // While the gradients of weights wait, beyond what is kept: inputs of the Linears and gradients
  // of their outputs, and nothing else.
  int64_t waiting(const Recomputed& again) const {
    const int64_t held = plus(plus(inputs, outputs), plus(closing_attention, closing_mlp));
    return std::max<int64_t>(held - kept(again), 0);
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

// The schedule's peak on this rank, and how many stages it runs.
pipeline::InFlight in_flight_of(const ShardingRequest& request, int64_t& local) {
  const PipelineOptions& options = request.config.shared.pipeline;
  int64_t size = pipeline_size(request),
          rank = request.mesh.device_mesh->coordinate(request.rank, "pp"),
          micro_batches = micro_batches_of(request);
  local = 1;
  if (!options.schedule_csv.empty()) {
    const PipelineLists lists = read_actions(options.schedule_csv, size, micro_batches);
    int64_t last_stage = 0;
    std::set<int64_t> stages;
    for (size_t r = 0; r < lists.size(); ++r)
      for (const PipelineAction& action : lists[r]) {
        last_stage = std::max(last_stage, action.stage);
        if (static_cast<int64_t>(r) == rank) stages.insert(action.stage);
      }
    local = std::max<int64_t>(static_cast<int64_t>(stages.size()), 1);
    pipeline::InFlight peak = pipeline::peak_of(lists.at(static_cast<size_t>(rank)), last_stage);
    peak.logits = std::max<int64_t>(peak.logits, 1);
    return peak;
  }
  if (options.schedule.empty())
    return pipeline::in_flight(PipelineSchedule::gpipe, size, 1, micro_batches, rank);
  PipelineSchedule schedule = parse_schedule(options.schedule);
  if (is_multi_stage(schedule))
    local = static_cast<int64_t>(plan_stages(request.outline.layers, size, options)
                                     .stages_of_rank.at(static_cast<size_t>(rank))
                                     .size());
  return pipeline::in_flight(schedule, size, std::max<int64_t>(local, 1), micro_batches, rank);
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

  int64_t kept = 0, waiting = 0;  // by the forward of a pass; while gradients of weights wait
  int64_t largest = 0;            // of what is computed again at once: one layer, or one block
  int64_t outside = 0;            // of layers
  int64_t gradients = 0;          // of one layer's mlp and its output, as its backward begins
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
    kept = plus(kept, layer_.kept(again));
    waiting = plus(waiting, layer_.waiting(again));
    largest = std::max(largest, layer_.together(again));
    gradients = std::max(gradients, plus(layer_.mlp, outline_.hidden_size));
    layer_ = {};
  }

  void add(const ParameterOutline& parameter) {
    std::string_view module = module_of(parameter.name), within = index_.layer_of(module);
    if (within != current_) {
      close();
      current_ = within;
    }
    const ModuleOutline* found = index_.find(module);
    if (found == nullptr || parameter.shape.empty()) return;
    bool weight = parameter.name.ends_with(".weight");
    if (within.empty()) {
      if (weight && found->kind == ModuleKind::norm) outside += stream(module);
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
  std::set<std::string_view> blocks_;
};

}  // namespace

int64_t activation_bytes(const ShardingRequest& request, bool whole_layers) {
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
  pipeline::InFlight flight{1, 0, 1};
  int64_t local = 1, element = dtype_size(precision_of(request).param);
  if (pipeline_size(request) > 1) flight = in_flight_of(request, local);
  // Of all stages that the rank runs; a pass in flight is of one of them.
  auto in_flight = [&](int64_t elements, int64_t passes) {
    int64_t all = times(elements, passes);
    return all == INT64_MAX ? all : (all + local - 1) / local;
  };
  int64_t elements =
      plus(plus(in_flight(token.kept, flight.passes), in_flight(token.waiting, flight.waiting)),
           plus(token.largest, times(token.outside, flight.logits)));
  // At the turn to backward: the gradient of the logits, or that of the first layer. Without a
  // pipeline only the former, which comes when all of a pass is held.
  int64_t turn = logits, messages = 0, waiting_logits = 0;
  if (pipeline_size(request) > 1) {
    turn = std::max(turn, times(token.gradients, element));
    // What was sent stays until as many more are on their way as are in flight; and one comes. A
    // pass whose weights wait keeps the gradient that came, and the head's that of its logits.
    messages = times(message_bytes(request), plus(plus(flight.passes, flight.waiting), 1));
    elements = plus(elements, in_flight(token.outside, flight.waiting));
    waiting_logits = in_flight(logits, flight.waiting);
  }
  return plus(messages,
              times(tokens, plus(plus(times(elements, element), exchanged),
                                 plus(plus(times(logits, flight.logits), waiting_logits), turn))));
}

}  // namespace meshwright
