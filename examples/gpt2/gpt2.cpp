// GPT-2 (Radford et al. 2019) on paper, with Hugging Face's names: the planning half, which does
// without LibTorch. net.cpp is what runs.
#include <meshwright/plugin_main.h>

#include <array>
#include <cmath>
#include <string>

#include "sizes.h"

namespace mw = meshwright;

namespace {

using gpt2::Sizes;

// Modules and parameters in the order in which net.cpp registers them.
class Builder {
 public:
  Builder(mw::ModelOutline& outline, mw::DType storage) : o_(outline), storage_(storage) {}
  void module(const std::string& name, mw::ModuleKind kind, const char* class_name) {
    o_.modules.push_back({name, kind, class_name});
  }
  mw::ParameterOutline& parameter(const std::string& name, std::vector<int64_t> shape) {
    mw::ParameterOutline& p =
        o_.parameters.emplace_back(mw::ParameterOutline{name, std::move(shape), storage_});
    // The files of the first GPT-2 models have the inner model's names.
    p.stored.names = {name};
    if (constexpr std::string_view kInner = "transformer."; name.starts_with(kInner))
      p.stored.names.push_back(name.substr(kInner.size()));
    return p;
  }
  void norm(const std::string& name, int64_t width) {
    module(name, mw::ModuleKind::norm, "LayerNorm");
    parameter(name + ".weight", {width});
    parameter(name + ".bias", {width});
  }
  // transformers' Conv1D, whose file has [in, out].
  void linear(const std::string& name, int64_t in, int64_t out,
              const std::optional<mw::FusedRows>& fused = {}) {
    module(name, mw::ModuleKind::linear, "Linear");
    mw::ParameterOutline& weight = parameter(name + ".weight", {out, in});
    weight.stored.transposed = true;
    weight.fused = fused;
    parameter(name + ".bias", {out}).fused = fused;
  }

 private:
  mw::ModelOutline& o_;
  mw::DType storage_;
};

class Gpt2 final : public mw::ModelFamily {
 public:
  mw::ModelOutline outline(const mw::ModelRequest& request) const override {
    const Sizes s = gpt2::read_sizes(request);
    mw::ModelOutline o;
    o.architecture = "GPT2LMHeadModel";
    o.model_type = "gpt2";
    o.hidden_size = s.width;
    o.layers = s.layers;
    o.attention_heads = o.key_value_heads = s.heads;
    o.head_dim = s.width / s.heads;
    o.vocab_size = s.vocab;
    o.tied_embeddings = s.tied;
    o.inner_prefix = "transformer";
    o.max_positions = s.positions;
    o.positions_end = true;
    Builder b(o, request.storage);
    b.module("", mw::ModuleKind::other, "GPT2LMHeadModel");
    b.module("transformer", mw::ModuleKind::other, "GPT2Model");
    b.module("transformer.wte", mw::ModuleKind::embedding, "Embedding");
    b.parameter("transformer.wte.weight", {s.vocab, s.width});
    b.module("transformer.wpe", mw::ModuleKind::embedding, "Embedding");
    b.parameter("transformer.wpe.weight", {s.positions, s.width});
    b.module("transformer.h", mw::ModuleKind::list, "ModuleList");
    for (int64_t i = 0; i < s.layers; ++i) {
      const std::string layer = "transformer.h." + std::to_string(i);
      b.module(layer, mw::ModuleKind::layer, "GPT2Block");
      b.norm(layer + ".ln_1", s.width);
      b.module(layer + ".attn", mw::ModuleKind::other, "GPT2Attention");
      // Queries, keys and values of one head lie together, so that tensor parallelism cuts heads.
      b.linear(layer + ".attn.c_attn", s.width, 3 * s.width,
               mw::FusedRows{s.heads, {o.head_dim, o.head_dim, o.head_dim}});
      b.module(layer + ".attn.core", mw::ModuleKind::other, "AttentionCore");
      b.linear(layer + ".attn.c_proj", s.width, s.width);
      b.norm(layer + ".ln_2", s.width);
      b.module(layer + ".mlp", mw::ModuleKind::other, "GPT2MLP");
      b.linear(layer + ".mlp.c_fc", s.width, s.inner);
      b.linear(layer + ".mlp.c_proj", s.inner, s.width);
    }
    b.norm("transformer.ln_f", s.width);
    b.module("lm_head", mw::ModuleKind::linear, "Linear");
    if (!s.tied) b.parameter("lm_head.weight", {s.vocab, s.width});
    // Both embeddings are cut by rows, so that their sum may come out cut along the sequence.
    o.own_tp_plan = {{"transformer.wte", "rowwise_rep"},
                     {"transformer.wpe", "rowwise_rep"},
                     {"transformer.h.*.attn.c_attn", "colwise"},
                     {"transformer.h.*.attn.c_proj", "rowwise"},
                     {"transformer.h.*.mlp.c_fc", "colwise"},
                     {"transformer.h.*.mlp.c_proj", "rowwise"},
                     {"lm_head", "colwise_rep"}};
    o.own_sequence_plan = {{"transformer.h.*.ln_1", "sequence_parallel"},
                           {"transformer.h.*.ln_2", "sequence_parallel"},
                           {"transformer.ln_f", "sequence_parallel"}};
    return o;
  }

  void check_runs(const mw::ModelRequest& request, mw::Diagnostics& diagnostics) const override {
    if (request.sizes.cp > 1 && gpt2::read_sizes(request).drops())
      diagnostics.add(
          mw::Error(mw::ErrorCode::model_does_not_fit,
                    "the model drops out in training, which ranks that share a sample "
                    "would do each in its own way")
              .key("distributed.cp_size")
              .help("set embd_pdrop, resid_pdrop and attn_pdrop to 0 in its config.json")
              .help("set distributed.cp_size = 1"));
  }

  // As transformers: what writes to the residual stream starts smaller.
  mw::InitialValue initial_value(const mw::ModelRequest& request, const mw::ModelOutline& outline,
                                 const mw::ParameterOutline& parameter) const override {
    mw::InitialValue out = ModelFamily::initial_value(request, outline, parameter);
    if (out.kind != mw::InitialValue::Kind::normal) return out;
    const Sizes s = gpt2::read_sizes(request);
    out.value = s.range;
    if (parameter.name.ends_with("c_proj.weight"))
      out.value /= std::sqrt(2.0 * static_cast<double>(s.layers));
    return out;
  }
};

constexpr std::array kModels = {
    mw::describe_model<Gpt2>({.name = "gpt2", .summary = "GPT-2 as Hugging Face has it"})};

}  // namespace

MESHWRIGHT_MODEL_PLUGIN("gpt2", MESHWRIGHT_PLUGIN_VERSION, "Meshwright", "Apache-2.0",
                        "GPT-2, with Hugging Face's names", kModels)
