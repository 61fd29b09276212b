// How fields of metrics.jsonl are called elsewhere.
#pragma once

#include <string>
#include <string_view>

namespace meshwright::monitor {

struct Name {
  std::string tag;         // of TensorBoard: "speed/step_ms"; empty: it is not shown there
  std::string prometheus;  // "meshwright_step_seconds"; empty likewise
  std::string help;        // a sentence
  double divisor = 1;      // what it is divided by for Prometheus' base units
  bool counter = false;    // Prometheus is told the sum over all rows
};

// A field that no table knows has a name by rule: its ending says its unit.
Name name_of(std::string_view field);

}  // namespace meshwright::monitor
