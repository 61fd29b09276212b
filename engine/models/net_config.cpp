#include "engine/models/net_config.h"

#include <algorithm>
#include <cmath>

#include "engine/models/models.h"
#include "meshwright/error.h"
#include "sdk/base/words.h"

namespace meshwright::outlines {

namespace {

[[noreturn]] void refuse(ErrorCode code, const ConfigJson& config, const std::string& what) {
  throw Error(code, config.name() + ": " + what).key("model.config");
}

// "full_attention" or "sliding_attention" per layer; empty when the file does not say.
std::vector<std::string> read_layer_types(const ConfigJson& config, int64_t layers) {
  std::vector<std::string> types = config.strings("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != layers)
    refuse(ErrorCode::bad_model_config, config,
           "layer_types has " + std::to_string(types.size()) +
               " entries for num_hidden_layers = " + std::to_string(layers));
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i] != "full_attention" && types[i] != "sliding_attention")
      refuse(ErrorCode::bad_model_config, config,
             "layer_types[" + std::to_string(i) + "] = \"" + types[i] +
                 "\"; it may be full_attention or sliding_attention");
  return types;
}

std::vector<LayerConfig> read_layers(const ConfigJson& config, const std::string& model_type,
                                     int64_t count) {
  std::vector<LayerConfig> layers(static_cast<size_t>(count));
  auto window = [&](int64_t fallback) -> int64_t {
    return config.is_null("sliding_window")
               ? 0
               : config.integer("sliding_window", 1, kMaxPositions, fallback);
  };
  if (model_type == "mistral")
    for (LayerConfig& layer : layers) layer.window = window(4096);
  if ((model_type == "phi3" || model_type == "mixtral") && config.has("sliding_window"))
    for (LayerConfig& layer : layers) layer.window = window(0);
  if (model_type == "qwen3_moe" && config.boolean("use_sliding_window", false))
    for (LayerConfig& layer : layers) layer.window = window(4096);
  bool gemma = model_type == "gemma3_text";
  if (!gemma && model_type != "qwen2" && model_type != "qwen3") return layers;
  int64_t size = gemma || config.boolean("use_sliding_window", false) ? window(4096) : 0;
  std::vector<std::string> types = read_layer_types(config, count);
  int64_t first =
      config.integer("max_window_layers", 0, kMaxPositions, 28);  // Qwen: full attention before it
  int64_t pattern = config.integer("sliding_window_pattern", 1, kMaxPositions,
                                   6);  // Gemma 3: every so many layers one of full attention
  for (size_t i = 0; i < layers.size(); ++i) {
    auto number = static_cast<int64_t>(i);
    bool slides = !types.empty() ? types[i] == "sliding_attention"
                  : gemma        ? (number + 1) % pattern != 0
                                 : size > 0 && number >= first;
    if (!slides) continue;
    if (size == 0)
      refuse(ErrorCode::bad_model_config, config,
             "layer_types[" + std::to_string(i) + "] is sliding_attention, but " +
                 (gemma ? "" : "use_sliding_window is false or ") + "sliding_window is null");
    layers[i] = {size, gemma ? size_t{1} : size_t{0}};
  }
  return layers;
}

MoeNetConfig read_moe(const ConfigJson& config, const NetConfig& net) {
  MoeNetConfig out;
  if (config.number("router_jitter_noise", 0, 1, 0.0) > 0)
    refuse(ErrorCode::not_in_release, config,
           "router_jitter_noise above 0 does not run; set it to 0");
  if (net.activation != "silu" && net.activation != "swish" && net.activation != "gelu")
    refuse(ErrorCode::not_in_release, config,
           "hidden_act = \"" + net.activation + "\" does not run in experts; silu and gelu do");
  out.normalised = net.family.model_type == "mixtral" || config.boolean("norm_topk_prob", false);
  double coefficient = config.number("router_aux_loss_coef", 0, 1e6, 0.001);
  if (config.boolean("output_router_logits", false)) out.balance_coefficient = coefficient;
  return out;
}

// Fields that change the mathematics in ways that are not built.
void refuse_unbuilt(const ConfigJson& config, const DecoderFamily& family) {
  auto refuse_field = [&](const std::string& what) {
    refuse(ErrorCode::not_in_release, config, what);
  };
  if (family.model_type == "phi3" || family.model_type == "phi")
    for (const char* field : {"resid_pdrop", "embd_pdrop"})
      if (config.number(field, 0, 1, 0.0) > 0)
        refuse_field(std::string(field) + " above 0 does not run; set it to 0");
  if (family.model_type != "gemma3_text") return;
  if (config.has("attn_logit_softcapping"))
    refuse_field(
        "attn_logit_softcapping does not run, and transformers has no effect of it; set it to "
        "null");
  if (config.boolean("use_bidirectional_attention", false))
    refuse_field("use_bidirectional_attention does not run; causal attention does");
}

}  // namespace

const std::vector<std::string>& known_activations() {
  static const std::vector<std::string> all = text::split(
      "gelu|gelu_fast|gelu_new|gelu_python|gelu_pytorch_tanh|gelu_python_tanh|hardswish|leaky_relu|"
      "linear|mish|quick_gelu|relu|relu2|relu6|sigmoid|silu|swish|tanh",
      '|');
  return all;
}

std::vector<int64_t> attention_windows(const ConfigJson& config, const std::string& model_type,
                                       int64_t layers) {
  std::vector<int64_t> out;
  bool any = false;
  for (const LayerConfig& layer : read_layers(config, model_type, layers)) {
    out.push_back(layer.window);
    any = any || layer.window > 0;
  }
  return any ? out : std::vector<int64_t>();
}

NetConfig read_net_config(const ConfigJson& config) {
  const Variant& defaults = variant_of(config);
  NetConfig net;
  net.family = read_decoder_family(config);
  const DecoderSizes& s = net.family.sizes;
  refuse_unbuilt(config, net.family);
  net.ropes = read_ropes(config, s.head_dim, defaults.max_positions, net.family.model_type);
  net.layers = read_layers(config, net.family.model_type, s.layers);
  net.norm_epsilon = config.number(defaults.epsilon_field, 0, 1, defaults.norm_epsilon);
  net.activation = config.string(defaults.activation_field, defaults.activation);
  if (std::ranges::find(known_activations(), net.activation) == known_activations().end())
    refuse(ErrorCode::bad_model_config, config,
           defaults.activation_field + (" = \"" + net.activation) + "\" is not known; known are " +
               text::join(known_activations(), ", "));
  if (net.family.moe) net.moe = read_moe(config, net);
  net.attention_scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  net.attention_dropout = config.number("attention_dropout", 0, 1, 0.0);
  if (net.family.model_type == "gemma3_text") {
    net.norms_plus_one = true;
    net.attention_scale = 1 / std::sqrt(config.number("query_pre_attn_scalar", 1e-6, 1e12, 256.0));
    net.embedding_scale = std::sqrt(static_cast<double>(s.hidden));
    if (config.has("final_logit_softcapping"))
      net.logit_softcap = config.number("final_logit_softcapping", 1e-6, 1e12);
  }
  std::optional<int64_t> padding =
      config.is_null("pad_token_id") ? std::nullopt : defaults.padding_row;
  if (padding || config.has("pad_token_id")) {
    int64_t row = config.integer("pad_token_id", -s.vocab, s.vocab - 1, padding);
    if (row >= s.vocab)
      refuse(ErrorCode::bad_model_config, config,
             "pad_token_id is " + std::to_string(row) +
                 " where the file does not say it, outside of vocab_size = " +
                 std::to_string(s.vocab) + "; set it to a token or to null");
    net.padding_row = row < 0 ? row + s.vocab : row;
  }
  net.initializer_range = config.number("initializer_range", 0, 1e3, net.initializer_range);
  if (net.initializer_range == 0)
    net.initializer_range = 0.02;  // as transformers: `initializer_range or 0.02`
  return net;
}

}  // namespace meshwright::outlines
