#include "apps/performance/steptime/write_machine.h"

#include <string_view>

#include "apps/performance/steptime/figures.h"
#include "engine/config/toml_value.h"
#include "meshwright/error.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::steptime {
namespace {

std::string quoted(const std::string& text) { return config::to_toml(config::Value(text)); }

// Four digits: no measurement has more.
std::string digits(double value) { return text::format("%.4g", value); }

const char* heading(std::string_view table) {
  if (table == "device") return "[device]  # bytes, bytes a second";
  if (table == "peak") return "[peak]  # operations a second, dense";
  if (table == "rate") return "[rate]  # shares of the peaks and of the bandwidth";
  if (table == "network") return "[network]  # bytes a second of a rank; seconds a ring step";
  if (table == "overlap") return "[overlap]";
  return "[host]  # seconds to launch a layer, and of a step";
}

}  // namespace

std::string machine_text(const Machine& machine, const std::map<std::string, std::string>& sources,
                         const std::string& comment) {
  Machine copy = machine;
  std::string out, last, from = "\n[source]  # of each figure\n";
  for (const std::string& line : text::split(comment, '\n')) out += "# " + line + "\n";
  out += "schema = 1\n";
  for (const Figure& figure : figures_of(copy)) {
    const auto source = sources.find(figure.key());
    if (source == sources.end()) {
      if (figure.needed) throw Error(ErrorCode::internal, "no source of " + figure.key());
      continue;
    }
    if (last != figure.table) {
      last = figure.table;
      out += "\n" + std::string(heading(last)) + "\n";
      if (last == "device") {
        out += "name = " + quoted(machine.name) + "\n";
        std::string names;
        for (const std::string& name : machine.reported)
          names += (names.empty() ? "" : ", ") + quoted(name);
        if (!names.empty()) out += "reported = [" + names + "]\n";
      }
      if (last == "overlap" && machine.overlap.adds) out += "shares_cores = true\n";
    }
    out += std::string(figure.name) + " = " + digits(*figure.to) + "\n";
    from += quoted(figure.key()) + " = " + quoted(source->second) + "\n";
  }
  return out + from;
}

}  // namespace meshwright::steptime
