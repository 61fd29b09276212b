// What pictures are put together of.
#pragma once

#include <string>

namespace meshwright::runs {

// A piece of a picture with its size; its corner is at 0, 0.
struct Block {
  double width = 0, height = 0;
  std::string svg;
};
inline constexpr double kWidest = 470;  // of a picture that is to be read on a phone

std::string moved(const Block& block, double x, double y);
std::string text_at(double x, double y, const std::string& text, const char* classes = "");
// About how wide a text will be.
double text_width(const std::string& text);
// The whole <svg>; `label` for those who do not see it.
std::string picture(const std::string& label, const Block& block);

}  // namespace meshwright::runs
