#include "engine/evaluate/running/findings.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>

#include "sdk/base/plain_text.h"

namespace meshwright::evaluate {

namespace {

std::string number(double value, const char* format) { return text::format(format, value); }

// JSON and CSV have no words for what is not finite.
boost::json::value or_null(double value) {
  return std::isfinite(value) ? boost::json::value(value) : boost::json::value(nullptr);
}
std::string or_empty(double value) { return std::isfinite(value) ? number(value, "%.9g") : ""; }

double bits(double loss) { return loss / std::log(2.0); }

// RFC 4180.
std::string field(const std::string& path) {
  const std::string text = report::csv_cell(path);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

double Finding::perplexity() const { return std::exp(loss); }

bool Findings::has_auxiliary() const {
  return std::any_of(rows.begin(), rows.end(),
                     [](const Finding& row) { return std::isfinite(row.auxiliary); });
}

std::string Findings::text(const report::Style& style) const {
  std::string out = "data: " + data + "\n" + report::human_count(samples) +
                    (samples < all_samples ? " of " + report::human_count(all_samples) : "") +
                    (all_samples == 1 ? " sample of " : " samples of ") +
                    report::human_count(seq_len) + " tokens";
  if (!rows.empty()) out += ", " + report::counted(rows[0].targets, "target", "targets");
  out += "\n\n";
  std::vector<std::vector<std::string>> cells = {{"", "loss", "perplexity"}};
  if (bytes) cells[0].emplace_back("bits a byte");
  const bool auxiliary = has_auxiliary();
  if (auxiliary) cells[0].emplace_back("auxiliary loss");
  cells[0].insert(cells[0].end(), {"tokens/s", ""});
  const auto lowest = std::min_element(
      rows.begin(), rows.end(), [](const Finding& a, const Finding& b) { return a.loss < b.loss; });
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    std::vector<std::string> line = {row->name, number(row->loss, "%.6f"),
                                     number(row->perplexity(), "%.4g")};
    if (bytes) line.push_back(number(bits(row->loss), "%.4f"));
    if (auxiliary) line.push_back(number(row->auxiliary, "%.6f"));
    line.push_back(row->seconds > 0 ? report::human_count(static_cast<int64_t>(
                                          static_cast<double>(row->targets) / row->seconds))
                                    : "");
    line.emplace_back(rows.size() > 1 && row == lowest ? "lowest" : "");
    cells.push_back(std::move(line));
  }
  constexpr size_t kRight[] = {1, 2, 3, 4, 5};
  return out + report::table(style, cells, std::span(kRight).first(cells[0].size() - 2));
}

std::string Findings::csv() const {
  const bool auxiliary = has_auxiliary();
  std::string out = "path,step,loss,perplexity,targets,seconds";
  out += auxiliary ? ",auxiliary_loss\n" : "\n";
  for (const Finding& row : rows)
    out += field(row.path) + "," + (row.step >= 0 ? std::to_string(row.step) : "") + "," +
           or_empty(row.loss) + "," + or_empty(row.perplexity()) + "," +
           std::to_string(row.targets) + "," + number(row.seconds, "%.3f") +
           (auxiliary ? "," + or_empty(row.auxiliary) : "") + "\n";
  return out;
}

boost::json::object Findings::json() const {
  boost::json::array found;
  for (const Finding& row : rows) {
    boost::json::object one{
        {"path", row.path},
        {"step", row.step >= 0 ? boost::json::value(row.step) : boost::json::value(nullptr)},
        {"loss", or_null(row.loss)},
        {"perplexity", or_null(row.perplexity())}};
    if (bytes) one["bits_per_byte"] = or_null(bits(row.loss));
    if (std::isfinite(row.auxiliary)) one["auxiliary_loss"] = row.auxiliary;
    one["targets"] = row.targets;
    one["seconds"] = row.seconds;
    found.push_back(std::move(one));
  }
  return {{"data", data},
          {"samples", samples},
          {"all_samples", all_samples},
          {"seq_len", seq_len},
          {"evaluations", std::move(found)}};
}

}  // namespace meshwright::evaluate
