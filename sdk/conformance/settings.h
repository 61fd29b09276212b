// Help lines that a program can follow: "set distributed.tp_size = 2", several joined by "and" or
// commas. Not for use outside the kit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sdk/conformance/probe.h"

namespace meshwright::conformance {

struct Setting {
  std::string text;
  struct Item {
    bool own = false;  // of the strategy's own table, else of [distributed]
    std::string key;
    OptionValue value;
  };
  std::vector<Item> items;
};

// Neither field is set when the line is advice in other words, or about keys that a mesh request
// does not hold.
struct SettingOrProblem {
  std::optional<Setting> setting;
  std::string problem;  // "names a key that does not exist: distributed.tp"
};
SettingOrProblem parse_setting(const std::string& help, const OptionSchema& own);

void apply(const Setting& setting, Wish& wish);

}  // namespace meshwright::conformance
