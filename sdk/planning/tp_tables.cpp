#include "tp_tables.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "meshwright/tp_plan.h"
#include "sdk/base/text.h"

namespace meshwright::tp {

CutBlocks::CutBlocks(const TpPlan& plan, const footprint::ModuleIndex& index) : index_(index) {
  for (const TpEntry& entry : plan.entries) {
    if (entry.style.kind != TpStyleKind::column || entry.style.output != TpLayout::shard_last)
      continue;
    for (const std::string& name : entry.modules) {
      const ModuleOutline* module = index.find(name);
      if (module != nullptr && module->kind == ModuleKind::linear && !index.layer_of(name).empty())
        blocks_.insert(module_of(module->name));
    }
  }
}

std::string_view CutBlocks::around(std::string_view module) const {
  if (blocks_.empty()) return {};
  const std::string_view layer = index_.layer_of(module);
  if (layer.empty()) return {};
  for (std::string_view at = module;; at = module_of(at)) {
    const bool beside = at == module || at == module_of(module);
    if (blocks_.contains(at) && (at != layer || beside)) return *blocks_.find(at);
    if (at == layer || at.empty()) return {};
  }
}

Sees seen_by(const ModelOutline& outline, std::string_view module) {
  Sees out = Sees::unsaid;
  for (const auto& [pattern, word] : outline.own_tp_plan) {
    const Sees said = word == kOfHeads ? Sees::heads : word == kOfStream ? Sees::stream : out;
    if (said != out && pattern_matches(pattern, module)) out = said;
  }
  if (out != Sees::unsaid) return out;
  for (const auto& [pattern, word] :
       outline.own_sequence_plan)  // norms of the stream, by what it is
    if (pattern_matches(pattern, module)) return Sees::stream;
  return out;
}

}  // namespace meshwright::tp

namespace meshwright {

namespace {

struct StyleRow {
  std::string_view text;
  TpStyle style;
};

using enum TpStyleKind;
using enum TpLayout;
constexpr StyleRow kStyles[] = {
    {"colwise", {column, replicate, shard_last, TpOutputKind::plain}},
    {"rowwise", {row, shard_last, replicate, TpOutputKind::plain}},
    {"colwise_rep", {column, replicate, replicate, TpOutputKind::plain}},
    // What current Hugging Face plans write for the head: the same as colwise_rep.
    {"colwise_gather_output", {column, replicate, replicate, TpOutputKind::plain}},
    {"rowwise_rep", {row, replicate, replicate, TpOutputKind::plain}},
    {"sequence_parallel", {sequence, shard_1, shard_1, TpOutputKind::sharded}},
};

// Strings that a model's own plan may hold and that say nothing about tensor parallelism of a
// Linear or Embedding.
bool skipped_in_own_plan(std::string_view text) {
  return text.starts_with("ep_") || text == "local_colwise" || text == "local_rowwise" ||
         text == "gather" || text == "grouped_gemm" || text == "moe_tp_experts" ||
         text == "packed_colwise" || text == "packed_rowwise" || text == "moe_identity_expert" ||
         text == "mla_kv_a_proj";
}

}  // namespace

std::string_view style_name(TpStyleKind kind) {
  constexpr std::pair<TpStyleKind, std::string_view> kNames[] = {
      {column, "colwise"},
      {row, "rowwise"},
      {sequence, "sequence_parallel"},
      {sequence_all_gather, "sequence_parallel_allgather"},
      {rotary, "rotary"}};
  for (const auto& [style, name] : kNames)
    if (style == kind) return name;
  return "";
}

std::string_view layout_name(TpLayout layout) {
  constexpr std::pair<TpLayout, std::string_view> kNames[] = {{replicate, "replicate"},
                                                              {shard_1, "shard(1)"},
                                                              {shard_last, "shard(-1)"},
                                                              {partial, "partial"}};
  for (const auto& [known, name] : kNames)
    if (known == layout) return name;
  return "";
}

std::optional<TpStyle> parse_style(std::string_view text, StyleContext context) {
  for (const StyleRow& row : kStyles)
    if (row.text == text) return row.style;
  if (text == kOfHeads || text == kOfStream) return std::nullopt;
  // Newer spellings that only models' own plans use: a row style whose input is whole.
  if (context == StyleContext::own_plan &&
      (text == "embedding_rowwise" || text == "rowwise_split_input"))
    return TpStyle{row, replicate, replicate, TpOutputKind::plain};
  if (context == StyleContext::own_plan && skipped_in_own_plan(text)) return std::nullopt;
  std::vector<std::string> names;
  for (const StyleRow& row : kStyles) names.emplace_back(row.text);
  Error error(ErrorCode::bad_tp_plan,
              "\"" + std::string(text) + "\" is not a tensor-parallel style; the styles are " +
                  text::join(names, ", ") + ", replicated and replicated_with_grad_allreduce");
  error.key("distributed.tp_plan");
  if (std::string near = nearest_name(text, names); !near.empty())
    error.help("did you mean \"" + near + "\"?");
  throw error.help(
      "use \"colwise\" for a projection that is split by output, \"rowwise\" for the one after it");
}

Chunk ceil_chunk(int64_t size, int64_t count, int64_t index) {
  int64_t c = count > 0 ? (size + count - 1) / count : size;
  return {std::min(size, index * c), std::min(size, (index + 1) * c)};
}

// The plan tables by architecture (semantics 2.5 and 2.6), as lists of (pattern, style).

namespace {

using enum TpOutputKind;

constexpr TpStyle kColumn{column, replicate, shard_last, plain};
constexpr TpStyle kColumnReplicated{column, replicate, replicate, plain};
constexpr TpStyle kColumnKept{column, replicate, shard_last,
                              sharded};  // logits stay sharded over the vocabulary
constexpr TpStyle kRow{row, shard_last, replicate, plain};
constexpr TpStyle kRowScatter{row, shard_last, shard_1, sharded};
constexpr TpStyle kVocabulary{row, replicate, replicate, plain};
constexpr TpStyle kVocabularyScatter{row, replicate, shard_1, sharded};
constexpr TpStyle kSequence{sequence, shard_1, shard_1, sharded};
constexpr TpStyle kSequenceGather{sequence_all_gather, shard_1, replicate, sharded};
constexpr TpStyle kHeadScattered{column, shard_1, shard_last, sharded};
constexpr TpStyle kHeadScatteredReplicated{column, shard_1, replicate, plain};

// The pieces a Llama-shaped model is made of; rows of the table differ in a few of them.
struct Shape {
  std::string prefix = "model";
  bool fused = false;  // qkv_proj and gate_up_proj beside the separate ones
  std::string output = "self_attn.o_proj";
  std::vector<std::string> up = {"mlp.up_proj", "mlp.gate_proj"};
  std::string down = "mlp.down_proj";
  std::string head = "lm_head";
  std::string norm = "norm";
  std::vector<std::string> layer_norms = {"input_layernorm", "post_attention_layernorm"};
  bool gathering_norms =
      true;  // layer norms gather their output; else the projections after them gather
  bool keep_logits = true;
};

TpPlanEntries plan_of(const Shape& s, bool sp) {
  std::string layer = s.prefix + ".layers.*.";
  TpPlanEntries out = {{s.prefix + ".embed_tokens", sp ? kVocabularyScatter : kVocabulary}};
  for (const char* p : {"q_proj", "k_proj", "v_proj"})
    out.emplace_back(layer + "self_attn." + p, kColumn);
  if (s.fused) out.emplace_back(layer + "self_attn.qkv_proj", kColumn);
  out.emplace_back(layer + s.output, sp ? kRowScatter : kRow);
  if (s.fused) out.emplace_back(layer + "mlp.gate_up_proj", kColumn);
  for (const std::string& up : s.up) out.emplace_back(layer + up, kColumn);
  out.emplace_back(layer + s.down, sp ? kRowScatter : kRow);
  if (!s.head.empty()) {
    if (s.keep_logits)
      out.emplace_back(s.head, sp ? kHeadScattered : kColumnKept);
    else
      out.emplace_back(s.head, sp ? kHeadScatteredReplicated : kColumnReplicated);
  }
  if (sp) {
    out.emplace_back(s.prefix + "." + s.norm, kSequence);
    for (const std::string& norm : s.layer_norms)
      out.emplace_back(layer + norm, s.gathering_norms ? kSequenceGather : kSequence);
  }
  return out;
}

Shape fused() {
  Shape s;
  s.fused = true;
  return s;
}
Shape with_prefix(std::string prefix, std::string head = "lm_head") {
  Shape s;
  s.prefix = std::move(prefix);
  s.head = std::move(head);
  return s;
}
Shape phi() {
  Shape s;
  s.output = "self_attn.dense";
  s.up = {"mlp.fc1"};
  s.down = "mlp.fc2";
  s.norm = "final_layernorm";
  s.layer_norms = {"input_layernorm"};
  s.gathering_norms = false;
  return s;
}

TpPlanEntries gemma3(const std::string& prefix, bool sp) {
  Shape s = with_prefix(prefix);
  s.layer_norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                   "post_feedforward_layernorm"};
  s.gathering_norms = false;
  TpPlanEntries out = plan_of(s, sp);
  if (sp) {
    constexpr TpStyle kRotary{rotary, shard_1, replicate, plain};
    out.emplace_back(prefix + ".rotary_emb", kRotary);
    out.emplace_back(prefix + ".rotary_emb_local", kRotary);
  }
  return out;
}

TpPlanEntries baichuan() {
  std::string mlp = "model.layers.*.mlp.";
  return {{mlp + "gate_proj", kColumn}, {mlp + "up_proj", kColumn}, {mlp + "down_proj", kRow}};
}

TpPlanEntries falcon_h1() {
  Shape s;
  s.up = {"feed_forward.gate_proj", "feed_forward.up_proj"};
  s.down = "feed_forward.down_proj";
  s.keep_logits = false;
  return plan_of(s, false);
}

TpPlanEntries nemotron_h() {
  return {{"lm_head", kColumnKept},
          {"backbone.layers.*.mixer.up_proj", kColumn},
          {"backbone.layers.*.mixer.down_proj", kRow}};
}

TpPlanEntries sequence_classification(const ModelOutline& outline, bool sp) {
  bool head = outline.find_module("lm_head") != nullptr,
       score = outline.find_module("score") != nullptr;
  if (head || !score)
    throw Error(ErrorCode::bad_tp_plan,
                outline.architecture + " should have a module score and no lm_head, but it has " +
                    (head ? "an lm_head" : "no score"));
  Shape s = fused();
  s.head = "score";
  s.keep_logits = false;
  return plan_of(s, sp);
}

TpPlanEntries deci_lm(const ModelOutline& outline, bool sp) {
  if (outline.model_type != "nemotron-nas")
    throw Error(ErrorCode::bad_tp_plan,
                "DeciLMForCausalLM has a plan for model_type nemotron-nas only, not for \"" +
                    outline.model_type + "\"");
  TpPlanEntries out = base_tp_plan(sp);
  std::erase_if(out, [](const auto& entry) {
    return entry.first.ends_with("qkv_proj") || entry.first.ends_with("gate_up_proj");
  });
  return out;
}

}  // namespace

TpPlanEntries base_tp_plan(bool sequence_parallel) {
  Shape s = fused();
  s.keep_logits = false;
  TpPlanEntries out = plan_of(s, sequence_parallel);
  for (auto& [pattern, style] : out)
    if (style.kind == sequence_all_gather) style = kSequence;
  return out;
}

std::optional<TpPlanEntries> architecture_tp_plan(const ModelOutline& outline, bool sp,
                                                  std::vector<std::string>& notices) {
  const std::string& name = outline.architecture;
  auto ignored = [&] {
    if (sp)
      notices.push_back("sequence_parallel has no effect on the tensor-parallel plan of " + name);
  };
  // Phi3's fused weights are interleaved when they are loaded, so they split by columns like
  // separate ones.
  if (name == "LlamaForCausalLM" || name == "Qwen2ForCausalLM" || name == "Qwen3ForCausalLM" ||
      name == "NemotronFlashForCausalLM" || name == "Phi3ForCausalLM")
    return plan_of(fused(), sp);
  if (name == "Qwen3ForSequenceClassification") return sequence_classification(outline, sp);
  if (name == "Ministral3ForCausalLM") return plan_of({}, sp);
  if (name == "Mistral3ForConditionalGeneration") {
    ignored();
    return plan_of(with_prefix("model.language_model"), false);
  }
  if (name == "Gemma3ForCausalLM") return gemma3("model", sp);
  if (name == "Gemma3ForConditionalGeneration") return gemma3("model.language_model", sp);
  if (name == "PhiForCausalLM") return plan_of(phi(), sp);
  if (name == "DeciLMForCausalLM") return deci_lm(outline, sp);
  if (name == "BaichuanForCausalLM") {
    ignored();
    return baichuan();
  }
  if (name == "FalconH1ForCausalLM") {
    ignored();
    return falcon_h1();
  }
  if (name == "Qwen3_5ForCausalLM" || name == "Qwen3_5ForConditionalGeneration") {
    ignored();
    return own_tp_plan(outline);
  }
  if (name == "MuseGlimmerForCausalLM") {
    ignored();
    TpPlanEntries out = plan_of({}, false);
    out.emplace_back("model.layers.*.self_attn.output_gate_proj", kColumn);
    return out;
  }
  if (name == "NemotronLabsDiffusionForCausalLM")
    return plan_of(with_prefix("encoder", "diffusion_head"), sp);
  if (name == "NemotronHForCausalLM") {
    if (sp)
      throw Error(ErrorCode::option_refused,
                  "NemotronHForCausalLM has no sequence parallelism: its Mamba blocks need the "
                  "whole sequence")
          .key("distributed.sequence_parallel")
          .help("set distributed.sequence_parallel = false");
    return nemotron_h();
  }
  return std::nullopt;
}

}  // namespace meshwright
