// A model's config.json, as Hugging Face's folders have it: typed, bounded reads by name. What is
// wrong is told by file, field and line.
//
//   const ConfigJson config = ConfigJson::read(request.config);
//   config.expect_only({"hidden_size", "norm_eps"});  // where the format is your own
//   const int64_t width = config.integer("hidden_size", 1, 1 << 20, 768);
//   const double epsilon = config.number("norm_eps", 0, 1, 1e-6);
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/export.h"

namespace meshwright {

// One JSON object. A field that is null counts as absent but for is_null(). All reads throw
// Error(bad_model_config). Copies share what was parsed.
class MESHWRIGHT_API ConfigJson {
 public:
  // A file, or the config.json of a folder. Throws Error(missing_key) for an empty path,
  // Error(file_unreadable), and as parse().
  static ConfigJson read(const std::string& file_or_folder);
  // Throws Error(bad_model_config) for text that is not one JSON object or is nested too deeply. Of
  // a key that is repeated the last one counts, as in Python. `name`: of the file, in messages.
  static ConfigJson parse(std::string_view text, std::string name);
  // No moves: one that was moved from would hold nothing.
  ConfigJson(const ConfigJson&) = default;
  ConfigJson& operator=(const ConfigJson&) = default;
  ~ConfigJson() = default;

  bool has(std::string_view field) const;  // present and not null
  bool is_null(std::string_view field) const;
  bool is_list(std::string_view field) const;
  // A number in [low, high], whole or not; without `fallback` the field is required.
  int64_t integer(std::string_view field, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = std::nullopt) const;
  double number(std::string_view field, double low, double high,
                std::optional<double> fallback = std::nullopt) const;
  bool boolean(std::string_view field, bool fallback) const;
  std::string string(std::string_view field, const std::string& fallback) const;
  // Lists; empty when absent.
  std::vector<std::string> strings(std::string_view field) const;
  std::vector<double> numbers(std::string_view field, double low, double high) const;
  std::vector<int64_t> integers(std::string_view field, int64_t low, int64_t high) const;
  ConfigJson object(std::string_view field) const;  // required
  // Refuses the first field that is none of these, nor one that libraries write beside a model.
  void expect_only(std::initializer_list<std::string_view> fields) const;
  // Throws what a read throws: "<file>: <field> <what> (line 3)".
  [[noreturn]] void refuse(std::string_view field, const std::string& what) const;
  const std::string& name() const;

 private:
  struct Object;
  MESHWRIGHT_LOCAL explicit ConfigJson(std::shared_ptr<const Object> object);
  std::shared_ptr<const Object> object_;
};

enum class RopeType : uint8_t { standard, linear, dynamic, llama3, longrope, yarn };

// What turns queries and keys (meshwright/nn/rotary.h).
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 10000, factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  int64_t original_positions = 0;                              // llama3, longrope, yarn
  // longrope: dim / 2 each, for sequences up to original_positions and beyond.
  std::vector<double> short_factors, long_factors;
  // yarn: turns within original_positions between which it blends; to whole dimensions or not.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double attention_factor = 1;  // longrope, yarn: cos and sin are multiplied by it
  int64_t max_positions = 0;
  int64_t dim = 0;  // the leading part of a head that turns
  std::shared_ptr<const Later> later = {};
};

// From rope_theta, rope_scaling or rope_parameters, partial_rotary_factor and
// max_position_embeddings (default: `max_positions`); as transformers reads them for `model_type`
// where that is given. One; of gemma3_text one for full attention and one for windows. Throws
// Error(bad_model_config), and Error(not_in_release) for a type that does not run.
MESHWRIGHT_API std::vector<RopeConfig> read_ropes(const ConfigJson& config, int64_t head_dim,
                                                  int64_t max_positions,
                                                  std::string_view model_type = {});

}  // namespace meshwright
