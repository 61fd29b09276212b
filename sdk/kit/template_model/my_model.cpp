// my_model: a model family of your own, on paper: what is planned, without LibTorch. net.cpp is
// what runs. As it stands it is a small decoder with learned positions, which trains under every
// strategy, with tensor, sequence, context and pipeline parallelism; change the modules of net.cpp,
// and what outline() says of them.
#include <meshwright/plugin_main.h>

#include <array>
#include <string>
#include <vector>

#include "my_model.h"

namespace mw = meshwright;

namespace {

// Each option shows up in `meshwright plugins inspect` and is checked in the configuration.
constexpr std::array kOptions = {
    mw::int_option("vocabulary", "256", 2, 16777216, "Tokens."),
    mw::int_option("positions", "512", 1, 16777216, "The longest sample."),
    mw::int_option("width", "64", 1, 1048576, "Of hidden states."),
    mw::int_option("layers", "2", 1, 4096, "Decoder layers."),
    mw::int_option("heads", "4", 1, 4096, "Attention heads of a layer."),
};

class MyModelFamily final : public mw::ModelFamily {
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
  // The model on paper: modules and parameters in the order in which net.cpp registers
  // them.
  mw::ModelOutline outline(const mw::ModelRequest& request) const override {
    using enum mw::ModuleKind;
    const Sizes s(request.options);
    mw::OutlineBuilder b(request.storage);
    mw::ModelOutline& o = b.outline;
    o.architecture = "MyModel";
    o.model_type = "my_model";
    o.hidden_size = s.width;
    o.layers = s.layers;
    o.attention_heads = o.key_value_heads = s.heads;
    o.head_dim = s.width / s.heads;
    o.vocab_size = s.vocabulary;
    o.inner_prefix = "";
    o.max_positions = s.positions;
    o.positions_end = true;
    b.module("", other, "MyModel");
    b.embedding("tokens", s.vocabulary, s.width);
    b.embedding("positions", s.positions, s.width);
    b.module("layers", list, "ModuleList");
    for (int64_t i = 0; i < s.layers; ++i) {
      const std::string l = "layers." + std::to_string(i);
      b.module(l, layer, "MyModelLayer");
      b.norm(l + ".norm_attention", s.width, "LayerNorm", true);
      for (const char* part : {".query", ".key", ".value"})
        b.linear(l + part, s.width, s.width, true);
      b.module(l + ".core", other, "AttentionCore");
      b.linear(l + ".output", s.width, s.width, true);
      b.norm(l + ".norm_feed", s.width, "LayerNorm", true);
      b.linear(l + ".up", s.width, 4 * s.width, true);
      b.linear(l + ".down", 4 * s.width, s.width, true);
    }
    b.norm("norm", s.width, "LayerNorm", true);
    b.module("lm_head", linear, "Linear");
    b.parameter("lm_head.weight", {s.vocabulary, s.width});
    // How tensor parallelism cuts it; under sequence parallelism both embeddings give a part.
    o.own_tp_plan = {
        {"tokens", "rowwise_rep"}, {"positions", "rowwise_rep"}, {"lm_head", "colwise_rep"}};
    for (const char* in : {"query", "key", "value", "up"})
      o.own_tp_plan.emplace_back(std::string("layers.*.") + in, "colwise");
    for (const char* out : {"output", "down"})
      o.own_tp_plan.emplace_back(std::string("layers.*.") + out, "rowwise");
    for (const char* name : {"layers.*.norm_attention", "layers.*.norm_feed", "norm"})
      o.own_sequence_plan.emplace_back(name, "sequence_parallel");
    return o;
  }
};

constexpr std::array kModels = {mw::describe_model<MyModelFamily>(
    {.name = "my_model", .summary = "Describe it in one line", .options = kOptions})};

}  // namespace

// What the engine may know before it runs any of this: name, version, vendor, license (SPDX),
// summary. The version is that of project() in CMakeLists.txt.
MESHWRIGHT_MODEL_PLUGIN("my_model", MESHWRIGHT_PLUGIN_VERSION, "Your name", "Apache-2.0",
                        "What this plugin is for", kModels)
