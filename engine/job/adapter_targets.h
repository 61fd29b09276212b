// Which modules an adapter_config.json of peft is for.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright::plan {

class AdapterTargets {
 public:
  AdapterTargets() = default;  // all
  // By target_modules, exclude_modules, layers_to_transform and layers_pattern, as peft takes them.
  // An expression that is not read here (base::module_expression()) is for all modules, and one
  // that excludes for none.
  explicit AdapterTargets(const boost::json::object& config);

  bool hold(std::string_view module) const;
  // Whether it names modules, each of which has tensors: no expression, and not "all-linear".
  bool are_names() const { return names_.has_value(); }
  // What the file says: "target_modules = [...], layers_to_transform = [1]".
  const std::string& text() const { return text_; }

 private:
  bool is_in_layers(std::string_view module) const;
  std::optional<std::vector<std::string>> names_;
  std::optional<std::regex> expression_;
  bool all_linear_ = false;
  std::vector<std::string> excluded_;
  std::optional<std::regex> excluded_expression_;
  std::vector<int64_t> layers_;              // empty: all
  std::vector<std::string> layers_pattern_;  // what may stand before a layer's number; empty: any
  std::string text_;
};

}  // namespace meshwright::plan
