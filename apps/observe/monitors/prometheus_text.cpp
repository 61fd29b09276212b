#include "apps/observe/monitors/prometheus_text.h"

#include <charconv>
#include <cmath>

namespace meshwright::monitor {

namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || (c == '"' && quotes)) out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return out;
}

std::string value_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

std::string prometheus_text(const std::vector<prometheus::Reading>& readings) {
  std::string out;
  for (const prometheus::Reading& reading : readings) {
    out += "# HELP " + reading.name + " " + escaped(reading.help, /*quotes=*/false) + "\n# TYPE " +
           reading.name + (reading.counter ? " counter\n" : " gauge\n") + reading.name;
    std::string labels;
    for (const auto& [name, value] : reading.labels)
      labels += (labels.empty() ? "" : ",") + name + "=\"" + escaped(value, /*quotes=*/true) + "\"";
    out += (labels.empty() ? "" : "{" + labels + "}") + " " + value_text(reading.value) + "\n";
  }
  return out;
}

}  // namespace meshwright::monitor
