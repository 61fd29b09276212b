#include "engine/job/adapter_targets.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>

#include "engine/job/adapters.h"
#include "meshwright/error.h"
#include "sdk/base/host/module_numbers.h"

namespace meshwright::plan {
namespace {

// A string, or those of a list.
std::vector<std::string> strings_in(const boost::json::value* value) {
  std::vector<std::string> out;
  if (value != nullptr && value->is_string()) out.emplace_back(value->as_string());
  if (value != nullptr && value->is_array())
    for (const boost::json::value& one : value->as_array())
      if (one.is_string()) out.emplace_back(one.as_string());
  return out;
}

// nullopt: it is no string, or none that is read here.
std::optional<std::regex> expression_in(const boost::json::value* value) try {
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return base::module_expression(std::string(value->as_string()));
} catch (const Error&) {
  return std::nullopt;
}

bool expression_fits(const std::optional<std::regex>& expression, std::string_view module) {
  return expression && std::regex_match(module.begin(), module.end(), *expression);
}

bool names_one(const std::vector<std::string>& names, std::string_view module) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return names_module(name, module); });
}

std::optional<int64_t> layer_number(std::string_view part) {
  int64_t out = 0;
  const auto [end, failed] = std::from_chars(part.data(), part.data() + part.size(), out);
  if (failed != std::errc() || end != part.data() + part.size() || out < 0) return std::nullopt;
  return out;
}

}  // namespace

AdapterTargets::AdapterTargets(const boost::json::object& config) {
  const boost::json::value *targets = config.if_contains("target_modules"),
                           *excluded = config.if_contains("exclude_modules"),
                           *layers = config.if_contains("layers_to_transform");
  if (targets != nullptr && targets->is_array()) names_ = strings_in(targets);
  if (targets != nullptr && targets->is_string()) {
    all_linear_ = targets->as_string() == "all-linear";
    if (!all_linear_) expression_ = expression_in(targets);
  }
  if (excluded != nullptr && excluded->is_array()) excluded_ = strings_in(excluded);
  excluded_expression_ = expression_in(excluded);
  if (layers != nullptr && layers->is_int64()) layers_ = {layers->as_int64()};
  if (layers != nullptr && layers->is_array())
    for (const boost::json::value& one : layers->as_array())
      if (one.is_int64()) layers_.push_back(one.as_int64());
  layers_pattern_ = strings_in(config.if_contains("layers_pattern"));
  std::erase(layers_pattern_, "");
  for (const char* name :
       {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"})
    if (const boost::json::value* value = config.if_contains(name);
        value != nullptr && !value->is_null())
      text_ += (text_.empty() ? "" : ", ") + (name + (" = " + boost::json::serialize(*value)));
}

// The number is the last one between dots with two names before it at least, and the right one
// where layers_pattern says which. peft leaves a string of target_modules alone.
bool AdapterTargets::is_in_layers(std::string_view module) const {
  if (layers_.empty()) return true;
  for (size_t end = module.rfind('.'); end != std::string_view::npos && end > 0;) {
    const size_t begin = module.rfind('.', end - 1);
    if (begin == std::string_view::npos) return false;
    const std::string_view before = module.substr(0, begin);
    const std::optional<int64_t> number = layer_number(module.substr(begin + 1, end - begin - 1));
    if (number && before.find('.') != std::string_view::npos &&
        (layers_pattern_.empty() ||
         std::any_of(layers_pattern_.begin(), layers_pattern_.end(),
                     [&](const std::string& name) { return before.ends_with("." + name); })))
      return std::find(layers_.begin(), layers_.end(), *number) != layers_.end();
    end = begin;
  }
  return false;
}

bool AdapterTargets::hold(std::string_view module) const {
  if (names_one(excluded_, module) || expression_fits(excluded_expression_, module)) return false;
  // peft asks for the layer of those alone that a last part of a name selects.
  if (names_ && std::find(names_->begin(), names_->end(), module) != names_->end()) return true;
  if (names_) return names_one(*names_, module) && is_in_layers(module);
  if (all_linear_) return !names_module("lm_head", module);
  return !expression_ || expression_fits(expression_, module);
}

}  // namespace meshwright::plan
