#include "engine/runs/html.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "engine/report/report.h"

namespace meshwright::runs {

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : report::printable(text)) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string format(const char* pattern, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "not finite";
  const double size = std::abs(value);
  constexpr struct {
    double unit;
    const char* name;
  } kUnits[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [unit, name] : kUnits)
    if (size >= unit * 9.9995) return format("%.4g%s", value / unit, name);
  return format("%.4g", value);
}

std::string value_text(double value, bool bytes) {
  if (bytes && std::isfinite(value)) return report::human_bytes(std::llround(value));
  return short_number(value);
}

std::string letter_of(size_t run) {
  std::string out(1, static_cast<char>('A' + run % 26));
  return run < 26 ? out : letter_of(run / 26 - 1) + out;
}

std::vector<double> ticks(double least, double most, bool log, bool bytes, size_t wanted) {
  std::vector<double> out;
  if (log) {
    const bool fine = std::log10(most / least) < 2;
    for (int decade = static_cast<int>(std::floor(std::log10(least))); std::pow(10, decade) <= most;
         ++decade)
      for (double digit : {1.0, 2.0, 5.0}) {
        const double at = digit * std::pow(10, decade);
        if ((digit == 1 || fine) && at >= least && at <= most) out.push_back(at);
      }
    // Few enough to be read.
    while (out.size() > 2 * wanted) {
      std::vector<double> half;
      for (size_t i = 0; i < out.size(); i += 2) half.push_back(out[i]);
      out = std::move(half);
    }
    if (!out.empty()) return out;
  }
  if (!(most > least)) return {least};
  // Of bytes in the unit that names them, of which ten are no round number.
  double unit = 1;
  if (bytes)
    while (most / unit >= 1024) unit *= 1024;
  const double rough = (most - least) / unit / static_cast<double>(wanted),
               power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (double digit : {1.0, 2.0, 2.5, 5.0})
    if (rough <= digit * power) {
      step = digit * power;
      break;
    }
  step *= unit;
  for (double i = std::ceil(least / step - 1e-9); i * step <= most + step * 1e-9; ++i)
    out.push_back(i * step + 0.0);  // never "-0"
  return out;
}

std::string html_table(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<size_t>& right, const char* classes) {
  std::string out = format("<div class=\"wide\"><table class=\"%s\">", classes);
  for (size_t r = 0; r < rows.size(); ++r) {
    out += r == 0 ? "<thead><tr>" : "<tr>";
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const bool number = std::find(right.begin(), right.end(), i) != right.end();
      out += (r == 0 ? "<th" : "<td") + std::string(number ? " class=\"n\">" : ">") + rows[r][i] +
             (r == 0 ? "</th>" : "</td>");
    }
    out += r == 0 ? "</tr></thead><tbody>\n" : "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace meshwright::runs
