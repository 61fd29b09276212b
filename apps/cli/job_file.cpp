#include "apps/cli/job_file.h"

#include <string_view>

#include "engine/config/toml_value.h"

namespace meshwright::cli {

std::string job_text(const std::string& head, std::span<const JobLine> lines) {
  std::string out = head + "schema = 1\n";
  std::string_view table;
  for (const JobLine& line : lines) {
    if (line.table != table) out += "\n[" + std::string(line.table) + "]\n";
    table = line.table;
    out += std::string(line.key) + " = " + line.value +
           (line.why.empty() ? "" : "  # " + line.why) + "\n";
  }
  return out;
}

std::string quoted_toml(const std::string& text) { return config::to_toml(config::Value(text)); }

}  // namespace meshwright::cli
