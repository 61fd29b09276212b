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

class Gpt2 final : public mw::ModelFamily {
 public:
  mw::ModelOutline outline(const mw::ModelRequest& request) const override {
    using enum mw::ModuleKind;
    const Sizes s = gpt2::read_sizes(request);
    mw::OutlineBuilder b(request.storage);
    mw::ModelOutline& o = b.outline;
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
    // Modules and parameters in the order in which net.cpp registers them.
    b.module("", other, "GPT2LMHeadModel");
    b.module("transformer", other, "GPT2Model");
    b.embedding("transformer.wte", s.vocab, s.width);
    b.embedding("transformer.wpe", s.positions, s.width);
    b.module("transformer.h", list, "ModuleList");
    for (int64_t i = 0; i < s.layers; ++i) {
      const std::string l = "transformer.h." + std::to_string(i);
      b.module(l, layer, "GPT2Block");
      b.norm(l + ".ln_1", s.width, "LayerNorm", true);
      b.module(l + ".attn", other, "GPT2Attention");
      // Queries, keys and values of one head lie together, so that tensor parallelism cuts heads.
      b.fused_linear(l + ".attn.c_attn", s.width, {s.heads, {o.head_dim, o.head_dim, o.head_dim}},
                     true);
      b.module(l + ".attn.core", other, "AttentionCore");
      b.linear(l + ".attn.c_proj", s.width, s.width, true);
      b.norm(l + ".ln_2", s.width, "LayerNorm", true);
      b.module(l + ".mlp", other, "GPT2MLP");
      b.linear(l + ".mlp.c_fc", s.width, s.inner, true);
      b.linear(l + ".mlp.c_proj", s.inner, s.width, true);
    }
    b.norm("transformer.ln_f", s.width, "LayerNorm", true);
    b.module("lm_head", linear, "Linear");
    if (!s.tied) b.parameter("lm_head.weight", {s.vocab, s.width});
    for (mw::ParameterOutline& p : o.parameters) {
      // transformers' Conv1D, c_attn and the like, has [in, out] in its files; those of the first
      // GPT-2 models have the inner model's names.
      p.stored.transposed = p.shape.size() == 2 && p.name.find(".c_") != std::string::npos;
      p.stored.names = {p.name};
      if (constexpr std::string_view kInner = "transformer."; p.name.starts_with(kInner))
        p.stored.names.push_back(p.name.substr(kInner.size()));
      // As transformers: what writes to the residual stream starts smaller.
      if (p.shape.size() == 2)
        p.init = mw::InitialValue{mw::InitialValue::Kind::normal,
                                  p.name.ends_with("c_proj.weight")
                                      ? s.range / std::sqrt(2.0 * static_cast<double>(s.layers))
                                      : s.range};
    }
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
};

constexpr std::array kModels = {
    mw::describe_model<Gpt2>({.name = "gpt2", .summary = "GPT-2 as Hugging Face has it"})};

}  // namespace

MESHWRIGHT_MODEL_PLUGIN("gpt2", MESHWRIGHT_PLUGIN_VERSION, "Meshwright", "Apache-2.0",
                        "GPT-2, with Hugging Face's names", kModels)
