#include "apps/observe/report/block.h"

#include <cmath>

#include "apps/observe/report/html.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {

std::string moved(const Block& block, double x, double y) {
  return format("<g transform=\"translate(%.1f %.1f)\">", x, y) + block.svg + "</g>";
}

std::string text_at(double x, double y, const std::string& text, const char* classes) {
  return format("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, classes) + escaped(text) +
         "</text>";
}

double text_width(const std::string& text) {
  return 7.0 * static_cast<double>(report::display_width(text));
}

std::string picture(const std::string& label, const Block& block) {
  return format(
             "<svg class=\"picture\" viewBox=\"0 0 %.0f %.0f\" style=\"width:%.0fpx\" "
             "role=\"img\" aria-label=\"",
             std::ceil(block.width) + 2, std::ceil(block.height) + 2, block.width * 1.15 + 2) +
         escaped(label) + "\">" + block.svg + "</svg>\n";
}

}  // namespace meshwright::runs
