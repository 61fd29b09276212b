#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "sdk/base/head_of.h"

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
        shared_(request.config.shared),
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
          if (shape.size() != 2) break;
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

}  // namespace footprint

}  // namespace meshwright
