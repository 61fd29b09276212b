#include "sdk/conformance/settings.h"
#include "sdk/base/shared_schemas.h"

#include <array>
#include <charconv>
#include <regex>

namespace meshwright::conformance {
namespace {

constexpr std::array kSizes = {"dp_size", "dp_replicate_size", "tp_size",
                               "cp_size", "pp_size",           "ep_size"};

std::optional<OptionValue> parse_value(const std::string& text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    return OptionValue(text.substr(1, text.size() - 2));
  if (text == "true" || text == "false") return OptionValue(text == "true");
  int64_t integer = 0;
  double number = 0;
  const char *begin = text.data(), *end = begin + text.size();
  if (auto [at, error] = std::from_chars(begin, end, integer); error == std::errc() && at == end)
    return OptionValue(integer);
  if (auto [at, error] = std::from_chars(begin, end, number); error == std::errc() && at == end)
    return OptionValue(number);
  return std::nullopt;
}

}  // namespace

SettingOrProblem parse_setting(const std::string& help, const OptionSchema& own) {
  // The value ends at a blank, a comma or a bracket: "(dp is then 4)" may follow.
  static const std::regex item(R"re((distributed(?:\.[a-z0-9_]+)+) = ("[^"]*"|[^\s,;()\[\]]+))re");
  if (!help.starts_with("set ")) return {};
  Setting setting{help, {}};
  for (std::sregex_iterator it(help.begin(), help.end(), item), end; it != end; ++it) {
    std::string key = (*it)[1].str();
    std::optional<OptionValue> value = parse_value((*it)[2].str());
    if (!value) return {};
    std::string shared = key.substr(std::string("distributed.").size());
    if (key.starts_with(own.table + ".")) {
      std::string name = key.substr(own.table.size() + 1);
      if (own.find(name) == nullptr)
        return {std::nullopt, "names a key that does not exist: " + key};
      setting.items.push_back({true, name, *value});
    } else if (shared.find('.') != std::string::npos) {
      return {};  // another table
    } else if (distributed_schema().find(shared) == nullptr) {
      return {std::nullopt, "names a key that does not exist: " + key};
    } else if (std::find(kSizes.begin(), kSizes.end(), shared) != kSizes.end()) {
      setting.items.push_back({false, shared, *value});
    } else {
      return {};  // another strategy, or a key the mesh does not depend on
    }
  }
  if (setting.items.empty()) return {};
  return {std::move(setting), {}};
}

void apply(const Setting& setting, Wish& wish) {
  for (const Setting::Item& item : setting.items) {
    if (item.own) {
      wish.own.emplace_back(item.key, item.value);
      continue;
    }
    const auto* size = std::get_if<int64_t>(&item.value);
    if (item.key == "dp_size") {
      wish.dp = size != nullptr ? std::optional(*size) : std::nullopt;
      continue;
    }
    int64_t* const sizes[] = {nullptr, &wish.dp_replicate, &wish.tp, &wish.cp, &wish.pp, &wish.ep};
    for (size_t i = 1; i < kSizes.size(); ++i)
      if (item.key == kSizes[i]) *sizes[i] = size != nullptr ? *size : 1;
  }
}

}  // namespace meshwright::conformance
