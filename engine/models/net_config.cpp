#include "engine/models/net_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/models/models.h"
#include "meshwright/error.h"
#include "sdk/base/words.h"

namespace meshwright::outlines {

namespace {

struct Runnable {
  const char* architecture;
  int64_t max_positions;
  double norm_epsilon = 1e-6;
  const char *activation_field = "hidden_act", *activation = "silu";
  std::optional<int64_t> padding_row = std::nullopt;
  const char* epsilon_field = "rms_norm_eps";
};
constexpr std::array kRunnable = {
    Runnable{"LlamaForCausalLM", 2048},
    Runnable{"MistralForCausalLM", 4096 * 32},
    Runnable{"Qwen2ForCausalLM", 32768},
    Runnable{"Qwen3ForCausalLM", 32768},
    Runnable{"Gemma3ForCausalLM", 131072, 1e-6, "hidden_activation", "gelu_pytorch_tanh", 0},
    Runnable{"Phi3ForCausalLM", 4096, 1e-5, "hidden_act", "silu", 32000},
    Runnable{"PhiForCausalLM", 2048, 1e-5, "hidden_act", "gelu_new", std::nullopt,
             "layer_norm_eps"},
    Runnable{"MixtralForCausalLM", 4096 * 32, 1e-5},
    Runnable{"Qwen3MoeForCausalLM", 32768}};

constexpr const char* kActivations[] = {"gelu",
                                        "gelu_fast",
                                        "gelu_new",
                                        "gelu_python",
                                        "gelu_pytorch_tanh",
                                        "gelu_python_tanh",
                                        "hardswish",
                                        "leaky_relu",
                                        "linear",
                                        "mish",
                                        "quick_gelu",
                                        "relu",
                                        "relu2",
                                        "relu6",
                                        "sigmoid",
                                        "silu",
                                        "swish",
                                        "tanh"};

[[noreturn]] void refuse(ErrorCode code, const ConfigJson& config, const std::string& what) {
  throw Error(code, config.name() + ": " + what).key("model.config");
}

const Runnable& runnable(const ConfigJson& config) {
  std::string architecture =
      make_outline(config, DType::float32).architecture;  // refuses what is not known at all
  for (const Runnable& r : kRunnable)
    if (architecture == r.architecture) return r;
  throw Error(ErrorCode::internal, config.name() + ": nothing says how " + architecture + " runs")
      .key("model.config");
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

std::span<const char* const> known_activations() { return kActivations; }

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
  const Runnable& defaults = runnable(config);
  NetConfig net;
  net.family = read_decoder_family(config);
  const DecoderSizes& s = net.family.sizes;
  refuse_unbuilt(config, net.family);
  net.ropes = read_ropes(config, net.family, defaults.max_positions);
  net.layers = read_layers(config, net.family.model_type, s.layers);
  net.norm_epsilon = config.number(defaults.epsilon_field, 0, 1, defaults.norm_epsilon);
  net.activation = config.string(defaults.activation_field, defaults.activation);
  if (std::find(std::begin(kActivations), std::end(kActivations), net.activation) ==
      std::end(kActivations))
    refuse(ErrorCode::bad_model_config, config,
           defaults.activation_field + (" = \"" + net.activation) + "\" is not known; known are " +
               text::join(kActivations, ", "));
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

namespace {

constexpr double kMaxTheta = 1e18, kMaxFactor = 1e9, kLeast = 1e-6;

[[noreturn]] void refuse_rope(ErrorCode code, const ConfigJson& config, const std::string& what) {
  throw Error(code, config.name() + ": " + what).key("model.config");
}

// The fields of one embedding lie in `fields`: rope_parameters, an entry of it, or the older
// rope_scaling.
struct Reader {
  const ConfigJson& config;
  const DecoderFamily& family;
  int64_t max_positions;

  bool phi3() const { return family.model_type == "phi3"; }
  bool phi() const { return family.model_type == "phi"; }

  RopeType type_of(const ConfigJson& fields) const {
    std::string type = fields.string("rope_type", fields.string("type", "default"));
    if (phi3() && (type == "su" || type == "yarn")) type = "longrope";  // its older names there
    if (type == "default") return RopeType::standard;
    if (phi3() && type == "longrope") return RopeType::longrope;
    if (phi3())
      refuse_rope(ErrorCode::bad_model_config, fields,
                  "rope_type = \"" + type + "\"; Phi3 has default and longrope");
    if (type == "linear") return RopeType::linear;
    if (type == "dynamic") return RopeType::dynamic;
    if (type == "llama3") return RopeType::llama3;
    if (type == "yarn") return RopeType::yarn;
    refuse_rope(
        ErrorCode::not_in_release, fields,
        "rope_type = \"" + type +
            "\" does not run; those that run are default, linear, dynamic, llama3 and yarn");
  }

  int64_t turned(const ConfigJson& fields, RopeType type) const {
    int64_t head_dim = family.sizes.head_dim;
    double whole = config.number("partial_rotary_factor", 0, 1, phi() ? 0.5 : 1.0),
           part = fields.number("partial_rotary_factor", 0, 1, whole);
    if (!phi3() && !phi()) {  // the default type pays no heed to it there
      if (part != 1.0 && type != RopeType::standard)
        refuse_rope(
            ErrorCode::not_in_release, config,
            "partial_rotary_factor below 1 does not run with the rope_type of " + fields.name());
      return head_dim;
    }
    auto dim = static_cast<int64_t>(static_cast<double>(head_dim) * part);
    if (dim < 2 || dim % 2 != 0)
      refuse_rope(ErrorCode::bad_model_config, config,
                  "partial_rotary_factor turns " + std::to_string(dim) + " of head_dim = " +
                      std::to_string(head_dim) + " elements, but rotary embeddings turn pairs");
    return dim;
  }

  void read_longrope(const ConfigJson& fields, RopeConfig& rope) const {
    rope.original_positions =
        config.integer("original_max_position_embeddings", 2, kMaxPositions, 4096);
    rope.short_factors = fields.numbers("short_factor", kLeast, kMaxFactor);
    rope.long_factors = fields.numbers("long_factor", kLeast, kMaxFactor);
    for (const auto& [name, factors] : {std::pair("short_factor", &rope.short_factors),
                                        std::pair("long_factor", &rope.long_factors)})
      if (static_cast<int64_t>(factors->size()) != rope.dim / 2)
        refuse_rope(ErrorCode::bad_model_config, fields,
                    std::string(name) + " has " + std::to_string(factors->size()) +
                        " numbers, where half of the " + std::to_string(rope.dim) +
                        " turned elements of a head are needed");
    double ratio =
        static_cast<double>(rope.max_positions) / static_cast<double>(rope.original_positions);
    rope.factor = fields.number("factor", kLeast, kMaxFactor, ratio);
    double usual = rope.factor <= 1
                       ? 1
                       : std::sqrt(1 + std::log(rope.factor) /
                                           std::log(static_cast<double>(rope.original_positions)));
    rope.attention_factor = fields.number("attention_factor", kLeast, kMaxFactor, usual);
  }

  int64_t original_positions(const ConfigJson& fields) const {
    const ConfigJson& holder = config.has("original_max_position_embeddings") ? config : fields;
    return holder.integer("original_max_position_embeddings", 1, kMaxPositions, max_positions);
  }

  // As transformers: what is 0 or null is as good as absent, but for `truncate`, where null means
  // no, and which is looked for only where one embedding serves all layers.
  void read_yarn(const ConfigJson& fields, RopeConfig& rope) const {
    if (rope.theta <= 1)
      refuse_rope(ErrorCode::bad_model_config, fields,
                  "rope_type = \"yarn\" needs a rope_theta above 1");
    rope.original_positions = original_positions(fields);
    std::optional<double> ratio;
    if (fields.is_null("factor"))
      ratio = static_cast<double>(max_positions) / static_cast<double>(rope.original_positions);
    rope.factor = fields.number("factor", kLeast, kMaxFactor, ratio);
    auto or_else = [&](const char* field, double fallback) {
      double value = fields.number(field, 0, kMaxFactor, 0.0);
      return value == 0 ? fallback : value;
    };
    rope.beta_fast = or_else("beta_fast", 32);
    rope.beta_slow = or_else("beta_slow", 1);
    auto scale = [&](double by) {
      return rope.factor <= 1 ? 1 : 0.1 * by * std::log(rope.factor) + 1;
    };
    double above = or_else("mscale", 0), below = or_else("mscale_all_dim", 0);
    rope.attention_factor =
        fields.number("attention_factor", kLeast, kMaxFactor,
                      above != 0 && below != 0 ? scale(above) / scale(below) : scale(1));
    bool one_for_all = family.model_type != "gemma3_text";
    rope.truncate =
        !one_for_all || (!fields.is_null("truncate") && fields.boolean("truncate", true));
  }

  RopeConfig read(const ConfigJson& fields, double theta) const {
    RopeConfig rope;
    rope.max_positions = max_positions;
    rope.theta = fields.number("rope_theta", kLeast, kMaxTheta, theta);
    rope.type = type_of(fields);
    rope.dim = turned(fields, rope.type);
    if (rope.type == RopeType::longrope) {
      read_longrope(fields, rope);
      return rope;
    }
    if (rope.type == RopeType::yarn) read_yarn(fields, rope);
    if (rope.type == RopeType::standard || rope.type == RopeType::yarn) return rope;
    rope.factor = fields.number("factor", kLeast, kMaxFactor);
    if (rope.type == RopeType::dynamic && rope.dim == 2)
      refuse_rope(ErrorCode::bad_model_config, config,
                  "rope_type = \"dynamic\" needs a head_dim above 2");
    if (rope.type == RopeType::llama3) {
      rope.low_frequency_factor = fields.number("low_freq_factor", kLeast, kMaxFactor);
      rope.high_frequency_factor = fields.number("high_freq_factor", kLeast, kMaxFactor);
      if (rope.high_frequency_factor <= rope.low_frequency_factor)
        refuse_rope(ErrorCode::bad_model_config, fields,
                    "high_freq_factor must be greater than low_freq_factor");
      rope.original_positions = original_positions(fields);
    }
    return rope;
  }

  // One set for layers of full attention, one for those with windows. The older form says both at
  // the top of config.json, and rope_scaling is of the first alone.
  std::vector<RopeConfig> by_layer_type() const {
    const ConfigJson none = ConfigJson::parse("{}", config.name());
    ConfigJson full = none, sliding = none;
    if (config.has("rope_parameters")) {
      ConfigJson both = config.object("rope_parameters");
      if (both.has("full_attention")) full = both.object("full_attention");
      if (both.has("sliding_attention")) sliding = both.object("sliding_attention");
      for (const char* field : {"rope_theta", "rope_type", "type", "factor"})
        if (both.has(field))
          refuse_rope(
              ErrorCode::bad_model_config, both,
              std::string(field) +
                  " must stand in full_attention or sliding_attention, which have an embedding "
                  "each");
    }
    if (config.has("rope_scaling")) {
      if (config.has("rope_parameters"))
        refuse_rope(ErrorCode::bad_model_config, config,
                    "rope_scaling and rope_parameters say the same thing twice");
      full = config.object("rope_scaling");
    }
    double local = config.number("rope_local_base_freq", kLeast, kMaxTheta, 1e4);
    return {read(full, config.number("rope_theta", kLeast, kMaxTheta, 1e6)), read(sliding, local)};
  }
};

}  // namespace

std::vector<RopeConfig> read_ropes(const ConfigJson& config, const DecoderFamily& family,
                                   int64_t max_positions) {
  Reader reader{config, family,
                config.integer("max_position_embeddings", 1, kMaxPositions, max_positions)};
  if (int64_t head_dim = family.sizes.head_dim; head_dim % 2 != 0)
    refuse_rope(
        ErrorCode::bad_model_config, config,
        "head_dim = " + std::to_string(head_dim) + " is odd, but rotary embeddings turn pairs");
  if (family.model_type == "gemma3_text") return reader.by_layer_type();
  double theta =
      config.number("rope_theta", kLeast, kMaxTheta, family.model_type == "mixtral" ? 1e6 : 1e4);
  const char* field = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!config.has(field)) return {reader.read(ConfigJson::parse("{}", config.name()), theta)};
  ConfigJson fields = config.object(field);
  if (fields.has("full_attention") || fields.has("sliding_attention"))
    refuse_rope(ErrorCode::not_in_release, config,
                std::string(field) + " differs between layer types; one set for all layers runs");
  return {reader.read(fields, theta)};
}

}  // namespace meshwright::outlines
