#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "sdk/base/context_plan.h"
#include "sdk/base/head_of.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright {

namespace {

using namespace footprint;

bool is_named(const std::initializer_list<const char*>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What of the first layer that trains has gradients: its first block, and what lies behind it, only
// where something in them does. Adapters leave its norms as they are, and nothing comes from below.
class FirstLayer {
 public:
  FirstLayer(const ModelOutline& outline, const ModuleIndex& index) {
    for (const ParameterOutline& p : outline.parameters) {
      const std::string_view module = module_of(p.name), layer = index.layer_of(module);
      if (!name_.empty() && layer != name_) break;
      if (p.stage > 0) return;  // its input has a gradient
      if (!p.trainable) continue;
      if (layer.empty() || module_of(module) == layer) {
        name_ = {};  // all of the layer, or of the model, lies behind it
        return;
      }
      name_ = layer;
      (in_attention(module.substr(layer.size())) ? attention_ : mlp_) = true;
    }
    if (name_.empty()) return;
    // Without a norm in between the blocks stand side by side.
    behind_ =
        attention_ && std::any_of(checkpoint_scope::kSecondNorms.begin(),
                                  checkpoint_scope::kSecondNorms.end(), [&](const char* norm) {
                                    return index.find(std::string(name_) + "." + norm) != nullptr;
                                  });
  }

  bool holds(std::string_view layer) const { return !name_.empty() && layer == name_; }
  // Of a module within the layer, by what is left of its name: whether gradients come to its input
  // and to its output.
  bool reaches_input(std::string_view inside) const {
    const bool first =
        in_block(inside) ? in_attention(inside) : is_named(checkpoint_scope::kFirstNorms, inside);
    return behind_ && !first;
  }
  bool reaches_output(std::string_view inside) const {
    if (!in_block(inside)) return reaches_input(inside);
    return in_attention(inside) ? attention_ : mlp_ || behind_;
  }

 private:
  static bool in_block(std::string_view inside) {
    return inside.find('.') != std::string_view::npos;
  }
  std::string_view name_;
  bool attention_ = false, mlp_ = false, behind_ = false;
};

// The collectives that the styles of a plan make, module by module, as
// sdk/parallel/tp_hooks.cpp runs them.
class TpSchedule {
 public:
  TpSchedule(const ShardingRequest& request, int64_t ranks, ScheduleBuilder& schedule)
      : request_(request),
        shared_(request.config.shared()),
        index_(request.outline),
        first_(request.outline, index_),
        tp_{"tp", ranks, 0},
        schedule_(schedule),
        tokens_(tokens_of(request)),
        passes_(passes_of(request)),
        element_(dtype_size(precision_of(request).param)) {
    for (const ParameterOutline& parameter : request.outline.parameters)
      parameters_[parameter.name] = &parameter;
  }

  void add() {
    for (const TpModule& module : resolve_tp_modules(request_.tp, request_.outline)) {
      const ModuleOutline& outlined = *index_.find(module.name);
      switch (module.style.kind) {
        case TpStyleKind::rotary:
          break;
        case TpStyleKind::sequence:
        case TpStyleKind::sequence_all_gather:
          add_norm(module);
          break;
        case TpStyleKind::column:
        case TpStyleKind::row: {
          std::vector<int64_t> shape = weight_shape(module.name);
          if (shape.size() != 2 || outlined.kind == ModuleKind::other) break;
          bool embedding = outlined.kind == ModuleKind::embedding;
          int64_t in = embedding ? shape[0] : shape[1], out = embedding ? shape[1] : shape[0];
          if (module.style.kind == TpStyleKind::column)
            add_column(module, embedding, in, out);
          else
            add_row(module, embedding, in, out);
          break;
        }
      }
    }
  }

 private:
  // A tied head has its embedding's weight.
  std::vector<int64_t> weight_shape(const std::string& module) const {
    auto at = parameters_.find(module + ".weight");
    if (at != parameters_.end()) return at->second->shape;
    const ModelOutline& outline = request_.outline;
    if (outline.tied_embeddings) return {outline.vocab_size, outline.hidden_size};
    return {};
  }
  // Payload of an activation of so many elements a token; cut along the last dimension it is padded
  // to equal parts.
  int64_t payload(int64_t width, TpLayout cut = TpLayout::shard_1) const {
    if (cut == TpLayout::shard_last) width = (width + tp_.size - 1) / tp_.size * tp_.size;
    return times(tokens_, width, element_);
  }
  void forward(std::string_view module, std::string_view op, int64_t bytes) {
    schedule_.add(tp_, Phase::forward, op, times(passes_, forward_runs(request_, index_, module)),
                  bytes);
  }
  enum class End : uint8_t { input, output };
  bool has_gradient(std::string_view module, End end) const {
    if (!index_.has_backward(module)) return false;
    const std::string_view layer = index_.layer_of(module);
    if (!first_.holds(layer)) return true;
    const std::string_view inside = module.substr(layer.size() + 1);
    return end == End::input ? first_.reaches_input(inside) : first_.reaches_output(inside);
  }
  void backward(std::string_view module, End end, std::string_view op, int64_t bytes) {
    if (has_gradient(module, end)) schedule_.add(tp_, Phase::backward, op, passes_, bytes);
  }
  // Between layouts that all ranks go on to use alike: putting together costs forward, taking a
  // part costs backward.
  void convert(std::string_view module, End end, TpLayout from, TpLayout to, int64_t width) {
    if (from == to) return;
    if (from != TpLayout::replicate) forward(module, "all_gather", payload(width, from));
    if (to != TpLayout::replicate) backward(module, end, "all_gather", payload(width, to));
  }

  void add_norm(const TpModule& module) {
    int64_t hidden = request_.outline.hidden_size;
    convert(module.name, End::input, module.style.input, TpLayout::shard_1, hidden);
    bool gathers = module.style.kind == TpStyleKind::sequence_all_gather;
    // Split into pieces, the gather is the columns' own.
    if (gathers && module.gathers_for_columns && shared_.enable_async_tensor_parallel) return;
    if (!gathers)
      return convert(module.name, End::output, TpLayout::shard_1, module.style.output, hidden);
    // The norm is computed again alone, without what is done with its output, unless its whole
    // layer is.
    bool again = shared_.activation_checkpointing == ActivationCheckpointing::full &&
                 checkpoint_scope::whole_layers(true, shared_.activation_checkpointing_scope);
    int64_t runs = again ? forward_runs(request_, index_, module.name) : 1;
    schedule_.add(tp_, Phase::forward, "all_gather", times(passes_, runs), payload(hidden));
    if (module.gathers_for_columns)
      backward(module.name, End::output, "reduce_scatter", payload(hidden));
  }

  void add_column(const TpModule& module, bool embedding, int64_t in, int64_t out) {
    // Columns of one block bring their common input into place once.
    bool first = served_.emplace(module_of(module.name), module.style.input).second;
    bool in_pieces = module.gathers_for_columns && shared_.enable_async_tensor_parallel;
    if (!embedding && first && (!module.gathers_for_columns || in_pieces)) {
      if (in_pieces || module.style.input == TpLayout::shard_1 ||
          module.style.input == TpLayout::shard_last) {
        TpLayout cut = in_pieces ? TpLayout::shard_1 : module.style.input;
        forward(module.name, "all_gather", payload(in, cut));
        backward(module.name, End::input, "reduce_scatter", payload(in, cut));
      } else {
        if (module.style.input == TpLayout::partial)
          forward(module.name, "all_reduce", payload(in));
        backward(module.name, End::input, "all_reduce", payload(in));
      }
    }
    convert(module.name, End::output, TpLayout::shard_last, module.style.output, out);
    // The loss of logits that stay cut: the largest of each token, then its sum of exponentials and
    // its target's logit.
    const ModuleOutline* head = head_of(request_.outline);
    const bool logits = !embedding && head != nullptr && head->name == module.name;
    if (logits && module.style.output == TpLayout::shard_last)
      for (int64_t floats : {1, 2})
        schedule_.add(tp_, Phase::forward, "all_reduce", passes_,
                      times(tokens_, floats, dtype_size(DType::float32)));
  }

  void add_row(const TpModule& module, bool embedding, int64_t in, int64_t out) {
    if (!embedding) convert(module.name, End::output, module.style.input, TpLayout::shard_last, in);
    switch (module.style.output) {
      case TpLayout::partial:
        break;
      case TpLayout::replicate:
        forward(module.name, "all_reduce", payload(out));
        break;
      case TpLayout::shard_1:
      case TpLayout::shard_last:
        forward(module.name, "reduce_scatter", payload(out));
        backward(module.name, End::output, "all_gather", payload(out));
        break;
    }
  }

  const ShardingRequest& request_;
  const SharedOptions& shared_;
  ModuleIndex index_;
  FirstLayer first_;
  Axis tp_;
  ScheduleBuilder& schedule_;
  int64_t tokens_, passes_, element_;
  std::unordered_map<std::string_view, const ParameterOutline*> parameters_;
  std::set<std::pair<std::string, TpLayout>> served_;  // blocks whose input is in place
};

int64_t tp_size(const ShardingRequest& request) {
  return request.mesh.device_mesh && !request.tp.entries.empty()
             ? request.mesh.device_mesh->size("tp")
             : 1;
}

}  // namespace

namespace footprint {

void add_tp_activations(const ShardingRequest& request, ScheduleBuilder& schedule) {
  int64_t ranks = tp_size(request);
  if (ranks > 1 && tokens_of(request) > 0) TpSchedule(request, ranks, schedule).add();
}

void add_partial_gradients(const ShardingRequest& request, const std::vector<int64_t>& elements,
                           DType reduce, ScheduleBuilder& schedule) {
  int64_t ranks = tp_size(request), sum = 0;
  if (ranks <= 1) return;
  std::vector<std::string> partial = partial_gradient_parameters(request.tp, request.outline);
  std::set<std::string_view> names(partial.begin(), partial.end());
  for (size_t i = 0; i < elements.size(); ++i)
    if (names.contains(request.outline.parameters[i].name)) sum = plus(sum, elements[i]);
  schedule.add({"tp", ranks, 0}, Phase::reduction, "all_reduce", 1, times(sum, dtype_size(reduce)));
}

// What attention over the ranks of cp sends and holds.

namespace {

// Whether a rank of tp has a part of the heads: what leads into attention leaves them cut, all of
// it or none of it (tp_resolve.cpp).
bool cuts_heads(const ShardingRequest& request) {
  if (request.tp.entries.empty()) return false;
  const ModuleIndex index(request.outline);
  for (const TpEntry& entry : request.tp.entries) {
    if (entry.style.kind != TpStyleKind::column || entry.style.output != TpLayout::shard_last)
      continue;
    for (std::string_view name : entry.modules)
      if (in_attention(name.substr(index.layer_of(name).size()))) return true;
  }
  return false;
}

// The dtype in which attention gets queries, keys and values, and sends them.
DType attention_dtype(const ShardingRequest& request) {
  return request.config.shared().autocast_dtype.value_or(precision_of(request).param);
}

// The window of a layer by its name, "model.layers.3": names stay global on a pipeline's stages.
int64_t window_of(const ModelOutline& outline, std::string_view layer, int64_t length) {
  const std::string_view digits = layer.substr(layer.rfind('.') + 1);
  size_t number = 0;
  const auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (bad != std::errc() || number >= outline.windows.size()) return 0;
  return outline.windows[number] < length ? outline.windows[number] : 0;
}

// Chunks of keys that a rank has for others, and that others have for it, under a window.
struct WindowChunks {
  WindowChunks(const ContextSplit& split, int64_t rank, int64_t window) {
    for (int64_t peer = 0; peer < split.ranks(); ++peer) {
      if (peer == rank) continue;
      for (int64_t chunk : split.chunks_of(rank)) sent += split.sees(peer, chunk, window);
      for (int64_t chunk : split.chunks_of(peer)) received += split.sees(rank, chunk, window);
    }
  }
  int64_t sent = 0, received = 0;
};

// What attention of one layer sends over cp: a forward, and what its backward has on top of another
// exchange of keys (semantics 14.3).
class ContextRows {
 public:
  ContextRows(const ShardingRequest& request, const ContextAttentionPlan& attention, int64_t tokens)
      : plan_(attention.plan),
        split_(std::max<int64_t>(request.workload.seq_len, 1), attention.ranks, plan_.balance),
        rank_(attention.rank),
        element_(dtype_size(attention_dtype(request))),
        wide_(std::max<int64_t>(element_, 4)),
        tokens_(tokens),
        row_(times(tokens, request.outline.head_dim)),
        heads_(attention.heads),
        kv_heads_(attention.kv_heads) {}

  void add(int64_t window, int64_t forward, int64_t backward, ScheduleBuilder& schedule) const {
    const Axis ring{"cp", plan_.ring, 0}, heads{"cp", plan_.ulysses, 0};
    // Heads to tokens and back: queries and outputs, keys and values.
    if (plan_.ulysses > 1) {
      const int64_t shared = std::max(kv_heads_, plan_.ulysses),
                    queries = times(row_, heads_, element_);
      schedule.add(heads, Phase::forward, "all_to_all", times(2, forward), queries);
      schedule.add(heads, Phase::backward, "all_to_all", backward, queries);
      // The gradient of the output takes the sums of its rows along.
      schedule.add(heads, Phase::backward, "all_to_all", backward,
                   plus(queries, times(tokens_, heads_, wide_)));
      const int64_t pairs = times(row_, shared, element_);
      schedule.add(heads, Phase::forward, "all_to_all", times(2, forward), pairs);
      schedule.add(heads, Phase::backward, "all_to_all", times(2, backward), pairs);
    }
    if (plan_.ring == 1) return;
    if (window > 0 && plan_.ulysses == 1) return add_window(window, forward, backward, schedule);
    // Of all ranks that share heads out, for this rank's heads.
    const int64_t keys =
        times(plan_.ulysses, row_, 2 * std::max<int64_t>(1, kv_heads_ / plan_.ulysses));
    if (plan_.method == ContextMethod::ring) {
      const int64_t steps = plan_.ring - 1;
      schedule.add(ring, Phase::forward, "send", times(steps, forward), times(keys, element_));
      schedule.add(ring, Phase::backward, "send", times(steps, backward), times(keys, element_));
      schedule.add(ring, Phase::backward, "send", times(steps, backward), times(keys, wide_));
      return;
    }
    const int64_t all = times(plan_.ring, keys, element_);
    schedule.add(ring, Phase::forward, "all_gather", forward, all);
    schedule.add(ring, Phase::backward, "all_gather", backward, all);
    schedule.add(ring, Phase::backward, "reduce_scatter", backward, all);
  }

 private:
  void add_window(int64_t window, int64_t forward, int64_t backward,
                  ScheduleBuilder& schedule) const {
    auto known = chunks_.find(window);
    if (known == chunks_.end())
      known = chunks_.emplace(window, WindowChunks(split_, rank_, window)).first;
    const WindowChunks& chunks = known->second;
    const Axis axis{"cp", plan_.ring, 0};
    const int64_t bytes = times(row_ / split_.per_rank(), 2 * kv_heads_, element_);
    schedule.add(axis, Phase::forward, "send", times(chunks.sent, forward), bytes);
    schedule.add(axis, Phase::backward, "send", times(plus(chunks.sent, chunks.received), backward),
                 bytes);
  }

  ContextPlan plan_;
  ContextSplit split_;
  int64_t rank_, element_, wide_, tokens_, row_, heads_, kv_heads_;
  mutable std::map<int64_t, WindowChunks> chunks_ = {};  // of each window
};

// All layers of this rank, and how often each runs.
void add_rows(const ShardingRequest& request, const ContextAttentionPlan& attention,
              const ModuleIndex& index, ScheduleBuilder& schedule) {
  const ContextRows rows(request, attention, tokens_of(request));
  for (const ModuleOutline& module : request.outline.modules) {
    if (module.kind != ModuleKind::layer) continue;
    // Attention is computed again under full checkpointing only.
    const int64_t passes = passes_of(request),
                  backward = index.has_backward(module.name) ? passes : 0,
                  forward = times(passes, forward_runs(request, index, module.name + ".self_attn"));
    rows.add(window_of(request.outline, module.name, request.workload.seq_len), forward, backward,
             schedule);
  }
}

int64_t sent_over_cp(const ShardingRequest& request, const ContextAttentionPlan& attention,
                     const ModuleIndex& index) {
  ScheduleBuilder schedule;
  add_rows(request, attention, index, schedule);
  int64_t bytes = 0;
  for (const Communication& row : schedule.rows())
    bytes = plus(bytes, times(row.count, row.sent()));
  return bytes;
}

// What the rank of cp that sends most would send: ranks decide alike. Nothing where the layers or
// their length are not known.
ContextBytes sent_by(const ShardingRequest& request, const ContextAttentionPlan& attention) {
  const ModelOutline& outline = request.outline;
  const bool layers =
      std::any_of(outline.modules.begin(), outline.modules.end(),
                  [](const ModuleOutline& m) { return m.kind == ModuleKind::layer; });
  const int64_t length = request.workload.seq_len;
  if (!layers || length <= 0) return {};
  return [&request, attention, length](const ContextPlan& plan) {
    const std::vector<int64_t>& windows = request.outline.windows;
    // Without windows all ranks send as much.
    const bool unlike =
        plan.ulysses == 1 &&
        std::any_of(windows.begin(), windows.end(), [&](int64_t w) { return w > 0 && w < length; });
    const ModuleIndex index(request.outline);
    ContextAttentionPlan one = attention;
    one.plan = plan;
    int64_t most = 0;
    for (one.rank = 0; one.rank < (unlike ? one.ranks : 1); ++one.rank)
      most = std::max(most, sent_over_cp(request, one, index));
    return most;
  };
}

}  // namespace

std::optional<ContextAttentionPlan> context_attention_of(const ShardingRequest& request) {
  if (!request.mesh.device_mesh) return std::nullopt;
  const Mesh& mesh = *request.mesh.device_mesh;
  ContextAttentionPlan out;
  out.ranks = mesh.size("cp");
  if (out.ranks <= 1) return std::nullopt;
  out.rank = mesh.coordinate(request.rank, "cp");
  const int64_t tp = cuts_heads(request) ? mesh.size("tp") : 1;
  // Of a model that says nothing of heads, 0.
  auto of_rank = [&](int64_t heads) { return heads == 0 ? 0 : std::max<int64_t>(heads / tp, 1); };
  out.heads = of_rank(request.outline.attention_heads);
  out.kv_heads = of_rank(request.outline.key_value_heads);
  out.plan = plan_context(request.config.shared().context, out.ranks, out.heads, out.kv_heads,
                          sent_by(request, out));
  return out;
}

void add_context_rows(const ShardingRequest& request, const ModuleIndex& index,
                      ScheduleBuilder& schedule) {
  if (const std::optional<ContextAttentionPlan> attention = context_attention_of(request))
    add_rows(request, *attention, index, schedule);
}

ContextHeld context_transient(const ShardingRequest& request,
                              const ContextAttentionPlan& attention) {
  const ContextPlan& plan = attention.plan;
  const int64_t element = dtype_size(attention_dtype(request)),
                wide = std::max<int64_t>(element, 4), size = request.outline.head_dim;
  // Of one rank's tokens, with the heads that this rank then has.
  const int64_t keys = times(2 * size, std::max(attention.kv_heads, plan.ulysses));
  // Heads on their way to tokens and back, queries or keys and values.
  const int64_t heads =
      plan.ulysses > 1 ? times(element, std::max(times(attention.heads, size), keys)) : 0;
  if (plan.ring == 1) return {.backward = heads};
  const ContextSplit split(std::max<int64_t>(request.workload.seq_len, 1), attention.ranks,
                           plan.balance);
  int64_t most = 0, room = 0;
  auto add = [&](int64_t window) {
    if (window > 0 && plan.ulysses == 1) {
      // Keys that come with their gradients, and the gradients of those that went, rounded.
      const WindowChunks chunks(split, attention.rank, window);
      const int64_t rounded = wide > element ? chunks.received : 0;
      most = std::max(most, plus(times(keys, wide, chunks.received),
                                 times(keys, element, chunks.received + chunks.sent + rounded)) /
                                split.per_rank());
    } else if (plan.method == ContextMethod::ring) {
      // Buffers that the keys pass through, and those of their gradients.
      most = std::max(most, plus(times(keys, element, std::min<int64_t>(plan.ring - 1, 2)),
                                 times(keys, wide, std::min<int64_t>(plan.ring, 3))));
    } else {
      // The gradients of others' keys. In shared memory stay two places for this rank's keys and
      // two for what it has for all others; without it as much is allocated at most.
      most = std::max(most, times(keys, wide, plan.ring - 1));
      room = times(keys, element, 2, plan.ring);
    }
  };
  bool layers = false;
  for (const ModuleOutline& module : request.outline.modules) {
    if (module.kind != ModuleKind::layer) continue;
    layers = true;
    add(window_of(request.outline, module.name, request.workload.seq_len));
  }
  if (!layers) add(0);
  // A ring has let its buffers go when heads go back.
  most = plan.method == ContextMethod::ring ? std::max(most, heads) : plus(most, heads);
  return {.backward = most, .room = room};
}

}  // namespace footprint

std::optional<ContextPlan> plan_context(const ShardingRequest& request) {
  const std::optional<footprint::ContextAttentionPlan> found =
      footprint::context_attention_of(request);
  return found ? std::optional<ContextPlan>(found->plan) : std::nullopt;
}

std::vector<ContextCost> context_costs(const ShardingRequest& request) {
  using namespace footprint;
  const std::optional<ContextAttentionPlan> chosen = context_attention_of(request);
  if (!chosen) return {};
  const ModuleIndex index(request.outline);
  std::vector<ContextCost> out;
  auto add = [&](const ContextPlan& plan) {
    ContextAttentionPlan attention = *chosen;
    attention.plan = plan;
    out.push_back({context_method_name(plan), sent_over_cp(request, attention, index),
                   times(tokens_of(request), context_transient(request, attention).all()),
                   plan.method == chosen->plan.method && plan.ring == chosen->plan.ring});
  };
  for (ContextMethod method :
       {ContextMethod::all_gather, ContextMethod::ring, ContextMethod::ulysses})
    try {
      ContextOptions options = request.config.shared().context;
      options.method = method;
      options.ring_size = options.ulysses_size = std::nullopt;
      add(plan_context(options, chosen->ranks, chosen->heads, chosen->kv_heads));
    } catch (const Error&) {  // the model's heads do not allow it
    }
  if (std::none_of(out.begin(), out.end(), [](const ContextCost& c) { return c.chosen; }))
    add(chosen->plan);
  return out;
}

}  // namespace meshwright
