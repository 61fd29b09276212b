#include "engine/job/boxes.h"

#include <algorithm>

namespace meshwright::render {

using report::Style;
using report::Tone;

namespace {

struct Glyphs {
  const char *h, *v, *tl, *tr, *bl, *br, *dots;
};
Glyphs glyphs(const Style& style) {
  if (style.unicode) return {"─", "│", "┌", "┐", "└", "┘", "…"};
  return {"-", "|", "+", "+", "+", "+", ".."};
}

std::string repeat(const char* text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace

const char* dots(const Style& style) { return glyphs(style).dots; }

size_t width_of(const Lines& lines) {
  size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, report::display_width(line));
  return width;
}

Lines frame(const Style& style, Tone tone, const std::string& title, const Lines& inside) {
  Glyphs g = glyphs(style);
  size_t width = std::max(width_of(inside), report::display_width(title) + 2);
  auto tinted = [&](const std::string& text) { return report::paint(style, tone, text); };
  Lines out = {tinted(std::string(g.tl) + g.h + " " + title + " " +
                      repeat(g.h, width - report::display_width(title) - 1) + g.tr)};
  for (const std::string& line : inside)
    out.push_back(tinted(g.v) + " " + report::pad(line, width) + " " + tinted(g.v));
  out.push_back(tinted(std::string(g.bl) + repeat(g.h, width + 2) + g.br));
  return out;
}

Lines flow(const std::vector<Lines>& blocks, size_t width) {
  Lines out;
  for (size_t i = 0; i < blocks.size();) {
    size_t j = i, used = 0, height = 0;
    while (j < blocks.size() && (j == i || used + 2 + width_of(blocks[j]) <= width)) {
      used += width_of(blocks[j]) + (j > i ? 2 : 0);
      height = std::max(height, blocks[j].size());
      ++j;
    }
    for (size_t row = 0; row < height; ++row) {
      std::string line;
      for (size_t k = i; k < j; ++k) {
        std::string part = row < blocks[k].size() ? blocks[k][row] : std::string();
        line += report::pad(part, width_of(blocks[k])) + (k + 1 < j ? "  " : "");
      }
      out.push_back(line);
    }
    i = j;
  }
  return out;
}

std::vector<int64_t> shown(int64_t size, int64_t most, int64_t mine) {
  std::vector<int64_t> out;
  if (size <= most) {
    for (int64_t i = 0; i < size; ++i) out.push_back(i);
    return out;
  }
  if (mine + 2 < most || mine == size - 1) {
    for (int64_t i = 0; i + 2 < most; ++i) out.push_back(i);
    out.insert(out.end(), {-1, size - 1});
    return out;
  }
  if (most < 5) return {-1, mine, -1};
  for (int64_t i = 0; i + 4 < most; ++i) out.push_back(i);
  out.insert(out.end(), {-1, mine});
  if (mine + 2 < size) out.push_back(-1);
  out.push_back(size - 1);
  return out;
}

}  // namespace meshwright::render
