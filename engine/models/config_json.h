// Typed, bounded access to a Hugging Face config.json: every read names the field and the file when
// it fails.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::outlines {

class ConfigJson {
 public:
  // Throws Error(bad_model_config) for text that is not one JSON object, is nested too deeply, or
  // repeats a key.
  static ConfigJson parse(std::string_view text, std::string name);

  bool has(std::string_view field) const;  // present and not null
  bool is_null(
      std::string_view field) const;  // present as null, which for some fields differs from absent
  bool is_list(std::string_view field) const;
  // A whole number in [low, high]; without `fallback` the field is required.
  int64_t integer(std::string_view field, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = std::nullopt) const;
  // A number in [low, high], whole or not.
  double number(std::string_view field, double low, double high,
                std::optional<double> fallback = std::nullopt) const;
  bool boolean(std::string_view field, bool fallback) const;
  std::string string(std::string_view field, const std::string& fallback) const;
  std::vector<std::string> strings(std::string_view field) const;  // empty when absent
  std::vector<double> numbers(std::string_view field, double low, double high) const;
  std::vector<int64_t> integers(std::string_view field, int64_t low, int64_t high) const;
  // The object below a field, for nested text configurations.
  ConfigJson object(std::string_view field) const;
  const std::string& name() const { return name_; }

 private:
  const boost::json::value* find(std::string_view field) const;  // nullptr: absent or null
  const boost::json::value& required(std::string_view field) const;
  [[noreturn]] void fail(std::string_view field, const std::string& what) const;
  boost::json::object object_;
  std::string name_;
};

// Two config.json beside each other: whether a run that began with the one may go on with the
// other.

struct ConfigChange {
  std::string field;        // "rope_parameters.rope_theta"
  std::string before, now;  // JSON; "": it is not there
};

// Of models that are made of these files: the fields with which `now` computes otherwise than
// `before` did, its loss and its gradients included; empty: the same. The order of fields, how a
// number is written, defaults written out and fields that no model is made of (dtypes, ids of the
// tokenizer, versions, how weights begin) change nothing.
// Both are texts of JSON. Throws Error(bad_model_config) for one that is none.
std::vector<ConfigChange> changes_of_model(std::string_view before, std::string_view now);
// Of files that somebody else makes a model of: every field that has another value, but for those
// that say nothing of a model. Throws as above.
std::vector<ConfigChange> changes_of_file(std::string_view before, std::string_view now);

}  // namespace meshwright::outlines
