#include "engine/nets/net_config.h"

#include <algorithm>
#include <array>

#include "engine/models/models.h"
#include "engine/nets/activation.h"
#include "meshwright/error.h"

namespace meshwright::nets {
namespace {

using models::ConfigJson;

constexpr int64_t kMaxPositions = int64_t{1} << 32;

struct Runnable {
  const char* architecture;
  int64_t max_positions;
};
constexpr std::array kRunnable = {Runnable{"LlamaForCausalLM", 2048}, Runnable{"MistralForCausalLM", 4096 * 32},
                                  Runnable{"Qwen2ForCausalLM", 32768}, Runnable{"Qwen3ForCausalLM", 32768}};

[[noreturn]] void refuse(ErrorCode code, const ConfigJson& config, const std::string& what) {
  throw Error(code, config.name() + ": " + what).key("model.config");
}

const Runnable& runnable(const ConfigJson& config) {
  std::string architecture = models::make_outline(config, DType::float32).architecture;  // refuses what is not known at all
  std::string all;
  for (const Runnable& r : kRunnable) {
    if (architecture == r.architecture) return r;
    all += (all.empty() ? "" : ", ") + std::string(r.architecture);
  }
  throw Error(ErrorCode::not_in_release,
              config.name() + ": " + architecture + " can be planned but does not run yet; those that run are " + all)
      .key("model.config")
      .help("choose a model of one of these architectures, or look at the plan alone with the verb plan");
}

RopeConfig read_rope(const ConfigJson& config, int64_t default_positions, int64_t head_dim) {
  RopeConfig rope;
  rope.head_dim = head_dim;
  rope.max_positions = config.integer("max_position_embeddings", 1, kMaxPositions, default_positions);
  rope.theta = config.number("rope_theta", 1e-6, 1e18, rope.theta);
  if (head_dim % 2 != 0)
    refuse(ErrorCode::bad_model_config, config, "head_dim = " + std::to_string(head_dim) + " is odd, but rotary embeddings turn pairs");
  const char* field = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!config.has(field)) return rope;
  ConfigJson fields = config.object(field);
  if (fields.has("full_attention") || fields.has("sliding_attention"))
    refuse(ErrorCode::not_in_release, config, std::string(field) + " differs between layer types; one set for all layers runs");
  rope.theta = fields.number("rope_theta", 1e-6, 1e18, rope.theta);
  std::string type = fields.string("rope_type", fields.string("type", "default"));
  if (type == "default") return rope;
  if (type == "linear")
    rope.type = RopeType::linear;
  else if (type == "dynamic")
    rope.type = RopeType::dynamic;
  else if (type == "llama3")
    rope.type = RopeType::llama3;
  else
    throw Error(ErrorCode::not_in_release,
                fields.name() + ": rope_type = \"" + type + "\" does not run; those that run are default, linear, dynamic and llama3")
        .key("model.config");
  if (fields.number("partial_rotary_factor", 0, 1, 1.0) != 1.0 || config.number("partial_rotary_factor", 0, 1, 1.0) != 1.0)
    refuse(ErrorCode::not_in_release, config, "partial_rotary_factor below 1 does not run with rope_type = \"" + type + "\"");
  rope.factor = fields.number("factor", 1e-6, 1e9);
  if (rope.type == RopeType::dynamic && head_dim == 2)
    refuse(ErrorCode::bad_model_config, config, "rope_type = \"dynamic\" needs a head_dim above 2");
  if (rope.type == RopeType::llama3) {
    rope.low_frequency_factor = fields.number("low_freq_factor", 1e-6, 1e9);
    rope.high_frequency_factor = fields.number("high_freq_factor", 1e-6, 1e9);
    if (rope.high_frequency_factor <= rope.low_frequency_factor)
      refuse(ErrorCode::bad_model_config, fields, "high_freq_factor must be greater than low_freq_factor");
    const ConfigJson& holder = config.has("original_max_position_embeddings") ? config : fields;
    rope.original_positions = holder.integer("original_max_position_embeddings", 1, kMaxPositions, rope.max_positions);
  }
  return rope;
}

std::vector<int64_t> read_windows(const ConfigJson& config, const models::DecoderFamily& family) {
  std::vector<int64_t> windows(static_cast<size_t>(family.sizes.layers), 0);
  constexpr int64_t kDefault = 4096;
  auto window = [&]() -> int64_t {
    return config.is_null("sliding_window") ? 0 : config.integer("sliding_window", 1, kMaxPositions, kDefault);
  };
  if (family.model_type == "mistral") {
    std::fill(windows.begin(), windows.end(), window());
  } else if (family.model_type == "qwen2" || family.model_type == "qwen3") {
    int64_t size = config.boolean("use_sliding_window", false) ? window() : 0;
    std::vector<std::string> types = config.strings("layer_types");
    int64_t first = config.integer("max_window_layers", 0, kMaxPositions, 28);
    if (types.empty()) {
      for (size_t i = 0; i < windows.size(); ++i) windows[i] = static_cast<int64_t>(i) >= first ? size : 0;
      return windows;
    }
    if (types.size() != windows.size())
      refuse(ErrorCode::bad_model_config, config,
             "layer_types has " + std::to_string(types.size()) + " entries for num_hidden_layers = " + std::to_string(windows.size()));
    for (size_t i = 0; i < windows.size(); ++i) {
      if (types[i] == "full_attention") continue;
      if (types[i] != "sliding_attention")
        refuse(ErrorCode::bad_model_config, config,
               "layer_types[" + std::to_string(i) + "] = \"" + types[i] + "\"; it may be full_attention or sliding_attention");
      if (size == 0)
        refuse(ErrorCode::bad_model_config, config,
               "layer_types[" + std::to_string(i) + "] is sliding_attention, but use_sliding_window is false or sliding_window is null");
      windows[i] = size;
    }
  }
  return windows;
}

}  // namespace

NetConfig read_net_config(const ConfigJson& config) {
  const Runnable& defaults = runnable(config);
  NetConfig net;
  net.family = models::read_decoder_family(config);
  net.rope = read_rope(config, defaults.max_positions, net.family.sizes.head_dim);
  net.norm_epsilon = config.number("rms_norm_eps", 0, 1, net.norm_epsilon);
  net.activation = config.string("hidden_act", net.activation);
  if (find_activation(net.activation) == nullptr)
    refuse(ErrorCode::bad_model_config, config, "hidden_act = \"" + net.activation + "\" is not known; known are " + activation_names());
  net.attention_dropout = config.number("attention_dropout", 0, 1, 0.0);
  net.windows = read_windows(config, net.family);
  if (config.has("pad_token_id")) {
    int64_t vocab = net.family.sizes.vocab, row = config.integer("pad_token_id", -vocab, vocab - 1);
    net.padding_row = row < 0 ? row + vocab : row;
  }
  net.initializer_range = config.number("initializer_range", 0, 1e3, net.initializer_range);
  if (net.initializer_range == 0) net.initializer_range = 0.02;  // as transformers: `initializer_range or 0.02`
  return net;
}

}  // namespace meshwright::nets
