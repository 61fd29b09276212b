// Tensor-parallel plans, the cost of layouts, and the third hook.
#include <algorithm>
#include <map>
#include <set>

#include "meshwright/parallel.h"
#include "sdk/conformance/cases.h"
#include "sdk/conformance/probe.h"

namespace meshwright::conformance {
namespace {

struct Shape {
  std::string architecture = "LlamaForCausalLM";
  int64_t hidden = 64, ffn = 176, heads = 8, kv = 4, layers = 3, vocab = 257;
};

// A small Llama on paper, with a vocabulary that divides by nothing.
ModelOutline llama(const Shape& s) {
  ModelOutline o;
  o.architecture = s.architecture;
  o.model_type = "llama";
  o.hidden_size = s.hidden;
  o.layers = s.layers;
  o.attention_heads = s.heads;
  o.key_value_heads = s.kv;
  o.head_dim = s.hidden / s.heads;
  o.vocab_size = s.vocab;
  auto module = [&](const std::string& name, ModuleKind kind, const char* class_name) { o.modules.push_back({name, kind, class_name}); };
  auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    module(name, ModuleKind::linear, "Linear");
    o.parameters.push_back({name + ".weight", {out, in}, DType::float32});
  };
  auto norm = [&](const std::string& name) {
    module(name, ModuleKind::norm, "LlamaRMSNorm");
    o.parameters.push_back({name + ".weight", {s.hidden}, DType::float32});
  };
  module("", ModuleKind::other, "LlamaForCausalLM");
  module("model", ModuleKind::other, "LlamaModel");
  module("model.embed_tokens", ModuleKind::embedding, "Embedding");
  o.parameters.push_back({"model.embed_tokens.weight", {s.vocab, s.hidden}, DType::float32});
  module("model.layers", ModuleKind::list, "ModuleList");
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    module(layer, ModuleKind::layer, "LlamaDecoderLayer");
    module(layer + ".self_attn", ModuleKind::other, "LlamaAttention");
    linear(layer + ".self_attn.q_proj", s.hidden, s.hidden);
    linear(layer + ".self_attn.k_proj", s.hidden, s.kv * o.head_dim);
    linear(layer + ".self_attn.v_proj", s.hidden, s.kv * o.head_dim);
    linear(layer + ".self_attn.o_proj", s.hidden, s.hidden);
    module(layer + ".mlp", ModuleKind::other, "LlamaMLP");
    linear(layer + ".mlp.gate_proj", s.hidden, s.ffn);
    linear(layer + ".mlp.up_proj", s.hidden, s.ffn);
    linear(layer + ".mlp.down_proj", s.ffn, s.hidden);
    norm(layer + ".input_layernorm");
    norm(layer + ".post_attention_layernorm");
  }
  norm("model.norm");
  linear("lm_head", s.hidden, s.vocab);
  for (const char* p : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    o.own_tp_plan.emplace_back(std::string("model.layers.*.") + p, "colwise");
  for (const char* p : {"self_attn.o_proj", "mlp.down_proj"}) o.own_tp_plan.emplace_back(std::string("model.layers.*.") + p, "rowwise");
  return o;
}

int64_t product(const std::vector<int64_t>& shape) {
  int64_t out = 1;
  for (int64_t size : shape) out *= size;
  return out;
}

int64_t held(const ParameterPlacement& p) { return p.local_range ? p.local_range->end - p.local_range->begin : product(p.local_shape); }

// Ranks that hold copies of one another's part: the product of the axes the parameter is replicated over.
int64_t copies(const ParameterPlacement& p, const MeshPlan& mesh, int64_t world) {
  int64_t parts = 1;
  for (const auto& [axis, where] : p.placement) {
    if (where == "replicate") continue;
    parts *= mesh.moe_mesh && !(mesh.device_mesh && mesh.device_mesh->has_axis(axis)) ? mesh.moe_mesh->size(axis)
             : mesh.device_mesh                                                       ? mesh.device_mesh->size(axis)
                                                                                      : world;
  }
  return parts > 0 ? world / parts : 0;
}

bool axis_exists(const MeshPlan& mesh, const std::string& axis) {
  if (!mesh.device_mesh) return axis == "dp";
  return mesh.device_mesh->has_axis(axis) || (mesh.moe_mesh && mesh.moe_mesh->has_axis(axis));
}

void check_one_layout(const Subject& subject, Strategy& strategy, const Wish& wish, const ModelOutline& outline, Report& report,
                      int& looked_at) {
  Answer<MeshRequest> request = ask([&] { return make_request(*subject.strategy, wish); });
  if (!request.value) return;
  Answer<MeshPlan> mesh = ask([&] { return strategy.plan_mesh(*request.value); });
  if (!mesh.value || !mesh.value->delegate_to.empty()) return;
  const SharedOptions& shared = request.value->config.shared;
  Answer<TpPlan> tp = ask([&] { return strategy.translate_tp_plan(outline, {shared.sizes.tp, shared.sequence_parallel, shared.tp_plan}); });
  if (!tp.value) {
    if (!tp.foreign.empty()) report.fail(describe(wish) + ": " + tp.foreign + " left translate_tp_plan");
    return;
  }
  ++looked_at;
  std::map<std::string, int64_t> elements, expected_copies;
  std::map<std::string, std::vector<int64_t>> global;
  for (int64_t rank = 0; rank < wish.world && !report.full(); ++rank) {
    FootprintRequest cost{outline, *mesh.value, *tp.value, request.value->config, {2, 128, 1, DType::float32, 2}, rank};
    Answer<Footprint> answer = ask([&] { return strategy.footprint(cost); });
    std::string lead = describe(wish) + ", rank " + std::to_string(rank) + ": ";
    if (!answer.value) return report.fail(lead + (answer.error ? one_line(*answer.error) : answer.foreign + " left footprint"));
    const Footprint& f = *answer.value;
    if (f.parameters.size() != outline.parameters.size())
      return report.fail(lead + std::to_string(f.parameters.size()) + " parameters placed of " + std::to_string(outline.parameters.size()));
    for (const ParameterPlacement& p : f.parameters) {
      if (p.local_shape.size() != p.global_shape.size() && !p.local_range) report.fail(lead + p.name + " changes its number of dimensions");
      if (held(p) < 0) report.fail(lead + p.name + " has a negative size");
      for (const auto& [axis, where] : p.placement)
        if (!axis_exists(*mesh.value, axis)) report.fail(lead + p.name + " lies on an axis that does not exist: " + axis);
      elements[p.name] += held(p);
      expected_copies[p.name] = copies(p, *mesh.value, wish.world);
      global[p.name] = p.global_shape;
    }
    for (int64_t bytes : {f.bytes.weights, f.bytes.gradients, f.bytes.optimizer, f.bytes.transient, f.bytes.activations})
      if (bytes < 0) report.fail(lead + "a negative number of bytes");
    for (const WireRow& row : f.wire) {
      if (!axis_exists(*mesh.value, row.axis)) report.fail(lead + "traffic on an axis that does not exist: " + row.axis);
      if (row.count < 0 || row.bytes < 0) report.fail(lead + "negative traffic on " + row.axis);
    }
    if (wish.world == 1 && !f.wire.empty()) report.fail(lead + "traffic on one rank");
  }
  // Every element is held, as often as there are copies.
  for (const auto& [name, total] : elements)
    if (!report.full() && total != product(global[name]) * expected_copies[name])
      report.fail(describe(wish) + ": the ranks hold " + std::to_string(total) + " elements of " + name + ", but " +
                  std::to_string(product(global[name])) + " x " + std::to_string(expected_copies[name]) + " copies are placed");
}

}  // namespace

void check_tp_plan(const Subject& subject, Report& report) {
  Instance strategy(subject);
  ModelOutline model = llama({});
  int plans = 0;
  for (int64_t tp : {1, 2, 4})
    for (bool sequence_parallel : {false, true}) {
      Answer<TpPlan> answer = ask([&] { return strategy->translate_tp_plan(model, {tp, sequence_parallel, {}}); });
      std::string lead = "tp " + std::to_string(tp) + (sequence_parallel ? " with sequence parallel: " : ": ");
      if (!answer.foreign.empty()) report.fail(lead + answer.foreign + " left translate_tp_plan");
      if (!answer.value) {
        if (!sequence_parallel) report.fail(lead + "no plan for a Llama" + (answer.error ? ": " + one_line(*answer.error) : ""));
        continue;
      }
      ++plans;
      if (tp == 1 && !answer.value->entries.empty()) report.fail(lead + "styles although there is nothing to split");
      std::set<std::string> styled;
      for (const TpEntry& entry : answer.value->entries) {
        if (entry.modules.empty()) report.fail(lead + "the entry " + entry.pattern + " matches nothing");
        for (const std::string& module : entry.modules) {
          if (model.find_module(module) == nullptr) report.fail(lead + entry.pattern + " names a module that does not exist: " + module);
          if (!styled.insert(module).second) report.fail(lead + "two styles for " + module);
        }
      }
    }
  for (int64_t tp : {3, 8}) {
    Answer<TpPlan> answer = ask([&] { return strategy->translate_tp_plan(model, {tp, false, {}}); });
    if (answer.value && !answer.value->entries.empty())
      report.fail("tp " + std::to_string(tp) + " is accepted for 8 heads and 4 key-value heads");
    if (answer.error && answer.error->helps().empty()) report.fail("tp " + std::to_string(tp) + " is refused without a help line");
  }
  report.note(std::to_string(plans) + " plans");
}

void check_footprint(const Subject& subject, Report& report) {
  Instance strategy(subject);
  ModelOutline model = llama({});
  int looked_at = 0;
  for (int64_t world : {1, 2, 3, 4, 6, 8})
    for (int64_t tp : {1, 2, 4})
      for (int64_t rep : {1, 2}) {
        if (world % tp != 0 || report.full()) continue;
        Wish wish;
        wish.world = world;
        wish.tp = tp;
        wish.dp_replicate = rep;
        check_one_layout(subject, *strategy, wish, model, report, looked_at);
      }
  if (looked_at == 0) report.fail("no layout of 1 to 8 ranks could be looked at");
  report.note(std::to_string(looked_at) + " layouts");
}

void check_parallelize(const Subject& subject, Report& report) {
  if ((subject.strategy->capabilities & MESHWRIGHT_CAN_PARALLELIZE) != 0) return report.skip("it can train; this kit checks planning only");
  Instance strategy(subject);
  ModelOutline outline = llama({});
  MeshRequest mesh_request = make_request(*subject.strategy, Wish{});
  MeshPlan mesh;
  TpPlan tp;
  ParallelizeRequest request{nullptr, outline, mesh, tp, mesh_request.config, 0};
  Answer<bool> answer = ask([&] { return strategy->parallelize(request) != nullptr; });
  if (answer.value)
    report.fail("it does not say that it can train, but parallelize answers");
  else if (!answer.foreign.empty())
    report.fail(answer.foreign + " left parallelize");
  else if (answer.error->code() != ErrorCode::not_in_release)
    report.fail("parallelize should answer " + code_string(ErrorCode::not_in_release) + ", found " + one_line(*answer.error));
  report.note("plans only");
}

}  // namespace meshwright::conformance
