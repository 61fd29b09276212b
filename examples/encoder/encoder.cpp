// A small bidirectional encoder (as BERT: Devlin et al. 2018) that learns to fill in masked tokens,
// on paper: a model family without a config.json. net.cpp is what runs.
#include <meshwright/plugin_main.h>

#include <array>
#include <string>
#include <vector>

#include "encoder.h"

namespace mw = meshwright;

namespace {

constexpr std::array kOptions = {
    mw::int_option("vocabulary", "257", 2, 16777216, "Tokens, the last of which is the mask."),
    mw::int_option("positions", "512", 1, 16777216, "The longest sample."),
    mw::int_option("width", "64", 1, 1048576, "Of hidden states."),
    mw::int_option("layers", "2", 1, 4096, "Encoder layers."),
    mw::int_option("heads", "4", 1, 4096, "Attention heads of a layer."),
    mw::number_option("masked", "0.15", 0, 1, "The share of tokens that are to be filled in."),
};

class EncoderFamily final : public mw::ModelFamily {
 public:
  void validate(const mw::ModelRequest& request, mw::Diagnostics& diagnostics) const override {
    const Sizes s(request.options);
    if (s.width % s.heads != 0)
      diagnostics.add(mw::option_error(request.options, "heads", mw::ErrorCode::conflict,
                                       "a width of " + std::to_string(s.width) +
                                           " is no multiple of " + std::to_string(s.heads) +
                                           " heads",
                                       "1"));
  }
  void check_runs(const mw::ModelRequest& request, mw::Diagnostics& diagnostics) const override {
    if (request.sizes.cp > 1)
      diagnostics.add(mw::Error(mw::ErrorCode::model_does_not_fit,
                                "every position of the encoder sees all others, which context "
                                "parallelism is not made for")
                          .key("distributed.cp_size")
                          .help("set distributed.cp_size = 1"));
  }
  mw::ModelOutline outline(const mw::ModelRequest& request) const override {
    using enum mw::ModuleKind;
    const Sizes s(request.options);
    mw::OutlineBuilder b(request.storage);
    mw::ModelOutline& o = b.outline;
    o.architecture = "Encoder";
    o.model_type = "encoder";
    o.hidden_size = s.width;
    o.layers = s.layers;
    o.attention_heads = o.key_value_heads = s.heads;
    o.head_dim = s.width / s.heads;
    o.vocab_size = s.vocabulary;
    o.inner_prefix = "";
    o.max_positions = s.positions;
    o.positions_end = true;
    b.module("", other, "Encoder");
    b.embedding("tokens", s.vocabulary, s.width);
    b.embedding("positions", s.positions, s.width);
    b.module("layers", list, "ModuleList");
    for (int64_t i = 0; i < s.layers; ++i) {
      const std::string l = "layers." + std::to_string(i);
      b.module(l, layer, "EncoderLayer");
      b.norm(l + ".norm_attention", s.width, "LayerNorm", true);
      for (const char* part : {".query", ".key", ".value", ".output"})
        b.linear(l + part, s.width, s.width, true);
      b.norm(l + ".norm_feed", s.width, "LayerNorm", true);
      b.linear(l + ".up", s.width, 4 * s.width, true);
      b.linear(l + ".down", 4 * s.width, s.width, true);
    }
    b.norm("norm", s.width, "LayerNorm", true);
    b.module("lm_head", linear, "Linear");
    b.parameter("lm_head.weight", {s.vocabulary, s.width});
    o.own_tp_plan = {{"tokens", "rowwise_rep"}, {"lm_head", "colwise_rep"}};
    for (const char* in : {"query", "key", "value", "up"})
      o.own_tp_plan.emplace_back(std::string("layers.*.") + in, "colwise");
    for (const char* out : {"output", "down"})
      o.own_tp_plan.emplace_back(std::string("layers.*.") + out, "rowwise");
    // They stand beside projections that are cut, and see what is whole.
    o.own_tp_plan.emplace_back("layers.*.norm_*", "replicated");
    return o;
  }
};

constexpr std::array kModels = {
    mw::describe_model<EncoderFamily>({.name = "encoder",
                                       .summary = "A bidirectional encoder of masked tokens",
                                       .options = kOptions})};

}  // namespace

MESHWRIGHT_MODEL_PLUGIN("encoder", MESHWRIGHT_PLUGIN_VERSION, "Meshwright", "Apache-2.0",
                        "An encoder that fills in masked tokens", kModels)
