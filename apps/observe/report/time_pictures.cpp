// Where time and tokens went.
#include <algorithm>
#include <boost/json/array.hpp>
#include <utility>

#include "apps/observe/report/block.h"
#include "apps/observe/report/html.h"
#include "apps/observe/report/pictures.h"

namespace meshwright::runs {

namespace json = boost::json;

TimeParts parts_of(const std::vector<RankTimes>& times) {
  TimeParts out;
  double total = 0, communicating = 0, hidden = 0, steps = 0;
  for (const RankTimes& rank : times) {
    out.computing += static_cast<double>(rank.computing);
    out.overlapped += static_cast<double>(rank.overlapped);
    out.waiting += static_cast<double>(rank.waiting);
    out.rest += static_cast<double>(rank.rest);
    total += static_cast<double>(rank.total());
    communicating += static_cast<double>(rank.communicating);
    hidden += static_cast<double>(rank.overlapped);
    steps += static_cast<double>(rank.steps);
  }
  if (total <= 0) return out;
  for (double* part : {&out.computing, &out.overlapped, &out.waiting, &out.rest}) *part /= total;
  if (communicating > 0) out.hidden = hidden / communicating;
  if (steps > 0) out.step_us = total / steps;
  return out;
}

std::string times_picture(const std::vector<RankTimes>& times, size_t most) {
  if (times.empty()) return {};
  constexpr double kLabel = 60, kBar = 390, kRow = 24;
  Block out{kLabel + kBar + 2, 0, ""};
  double longest = 1, y = 0;
  auto per_step = [](const RankTimes& rank) {
    return static_cast<double>(rank.total()) /
           static_cast<double>(std::max<int64_t>(rank.steps, 1));
  };
  const size_t ranks = std::min(times.size(), most);
  for (size_t i = 0; i < ranks; ++i) longest = std::max(longest, per_step(times[i]));
  for (size_t i = 0; i < ranks; ++i) {
    const RankTimes& rank = times[i];
    const double total = static_cast<double>(rank.total()),
                 scale = kBar * per_step(rank) / longest / total;
    const std::pair<const char*, int64_t> parts[] = {{"computing", rank.computing},
                                                     {"overlapped", rank.overlapped},
                                                     {"waiting", rank.waiting},
                                                     {"rest", rank.rest}};
    out.svg += text_at(0, y + 15, "rank " + std::to_string(rank.rank));
    double x = kLabel;
    for (const auto& [name, length] : parts) {
      const double wide = static_cast<double>(length) * scale,
                   share = static_cast<double>(length) / total * 100;
      if (wide <= 0) continue;
      out.svg += format(
          "<rect class=\"part %s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"18\">"
          "<title>%s %.1f%%</title></rect>",
          name, x, y + 2, wide, name, share);
      if (wide > 34)
        out.svg += format("<text class=\"middle halo\" x=\"%.1f\" y=\"%.1f\">%.0f%%</text>",
                          x + wide / 2, y + 15.5, share);
      x += wide;
    }
    y += kRow;
  }
  out.height = y;
  std::string legend = "<p class=\"legend\">";
  for (const auto& [name, words] :
       {std::pair("computing", "computation"),
        std::pair("overlapped", "computation while messages travel"),
        std::pair("waiting", "waiting for messages"), std::pair("rest", "none of these")})
    legend += format(
        "<span><svg class=\"sample\" viewBox=\"0 0 20 12\" aria-hidden=\"true\"><rect "
        "class=\"part %s\" x=\"1\" y=\"1\" width=\"18\" height=\"10\"/></svg> %s</span> ",
        name, words);
  return picture("Where the time of a step goes, by rank", out) + legend + "</p>\n";
}

std::string experts_picture(const json::object& load) {
  const json::array& blocks = load.at("blocks").as_array();
  if (blocks.empty()) return {};
  size_t experts = 1;
  double label = 40;
  for (const json::value& block : blocks) {
    experts = std::max(experts, block.as_object().at("tokens").as_array().size());
    label = std::max(label,
                     text_width(std::string(block.as_object().at("block").as_string())) * 0.8 + 8);
  }
  const double cell = std::clamp(360.0 / static_cast<double>(experts), 4.0, 22.0),
               row = std::max(cell, 14.0);
  Block out{label + cell * static_cast<double>(experts) + 60, 0, ""};
  double y = 0;
  for (const json::value& value : blocks) {
    const json::object& block = value.as_object();
    const json::array& tokens = block.at("tokens").as_array();
    double sum = 0;
    for (const json::value& count : tokens) sum += count.to_number<double>();
    const double mean = sum / static_cast<double>(std::max<size_t>(tokens.size(), 1));
    out.svg += text_at(0, y + row / 2 + 4, std::string(block.at("block").as_string()), "small");
    for (size_t i = 0; i < tokens.size(); ++i) {
      const double beside = mean > 0 ? tokens[i].to_number<double>() / mean : 0,
                   height = std::clamp(beside / 2, 0.0, 1.0) * (row - 2);
      // The height says it too: twice the mean and more fills the cell.
      out.svg += format(
          "<rect class=\"expert\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">"
          "<title>expert %zu: %.2f times the mean</title></rect>",
          label + cell * static_cast<double>(i), y + row - 1 - height, cell - 1,
          std::max(height, 0.6), i, beside);
    }
    out.svg += format("<path class=\"mean\" d=\"M%.1f %.1fh%.1f\"/>", label, y + row / 2,
                      cell * static_cast<double>(tokens.size())) +
               text_at(label + cell * static_cast<double>(experts) + 6, y + row / 2 + 4,
                       format("%.2fx", block.at("imbalance").to_number<double>()), "small");
    y += row + 3;
  }
  out.height = y;
  return "<div><p class=\"dim\">Tokens of each expert in all steps beside the mean (the line); a "
         "full "
         "cell is twice the mean or more, the number is the fullest.</p>" +
         picture("Tokens of each expert beside the mean", out) + "</div>\n";
}

}  // namespace meshwright::runs
