#include <cmath>
#include <string>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/model/config_json.h"

namespace meshwright {

namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 32;
constexpr double kMaxTheta = 1e18, kMaxFactor = 1e9, kLeast = 1e-6;

[[noreturn]] void refuse_rope(ErrorCode code, const ConfigJson& config, const std::string& what) {
  throw Error(code, config.name() + ": " + what).key("model.config");
}

// The fields of one embedding lie in `fields`: rope_parameters, an entry of it, or the older
// rope_scaling.
struct RopeReader {
  const ConfigJson& config;
  std::string_view model_type;
  int64_t head_dim, max_positions;

  bool phi3() const { return model_type == "phi3"; }
  bool phi() const { return model_type == "phi"; }

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
    double whole = config.number("partial_rotary_factor", 0, 1, phi() ? 0.5 : 1.0),
           part = fields.number("partial_rotary_factor", 0, 1, whole);
    if (!phi3() && !phi() && !model_type.empty()) {  // there the default type pays no heed to it
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
    bool one_for_all = model_type != "gemma3_text";
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

std::vector<RopeConfig> read_ropes(const ConfigJson& config, int64_t head_dim,
                                   int64_t max_positions, std::string_view model_type) {
  RopeReader reader{config, model_type, head_dim,
                    config.integer("max_position_embeddings", 1, kMaxPositions, max_positions)};
  if (head_dim % 2 != 0)
    refuse_rope(
        ErrorCode::bad_model_config, config,
        "head_dim = " + std::to_string(head_dim) + " is odd, but rotary embeddings turn pairs");
  if (model_type == "gemma3_text") return reader.by_layer_type();
  double theta =
      config.number("rope_theta", kLeast, kMaxTheta, model_type == "mixtral" ? 1e6 : 1e4);
  const char* field = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!config.has(field)) return {reader.read(ConfigJson::parse("{}", config.name()), theta)};
  ConfigJson fields = config.object(field);
  if (fields.has("full_attention") || fields.has("sliding_attention"))
    refuse_rope(ErrorCode::not_in_release, config,
                std::string(field) + " differs between layer types; one set for all layers runs");
  return {reader.read(fields, theta)};
}

}  // namespace meshwright
