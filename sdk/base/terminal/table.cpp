#include <algorithm>

#include "sdk/base/terminal/report.h"

namespace meshwright::report {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kGap = 2;             // columns between two cells
constexpr size_t kNarrowestCell = 12;  // cells are not broken finer than this

std::vector<size_t> natural_widths(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  return widths;
}

// Takes what is too much from the widest left-aligned columns.
void narrow(std::vector<size_t>& widths, std::span<const size_t> right, size_t limit) {
  auto total = [&] {
    size_t sum = 0;
    for (size_t w : widths) sum += w + kGap;
    return sum - std::min(sum, kGap);
  };
  while (total() > limit) {
    size_t widest = widths.size();
    for (size_t i = 0; i < widths.size(); ++i)
      if (std::find(right.begin(), right.end(), i) == right.end() &&
          (widest == widths.size() || widths[i] > widths[widest]))
        widest = i;
    if (widest == widths.size() || widths[widest] <= kNarrowestCell) return;
    --widths[widest];
  }
}

// Further lines of a cell stand as far in as its first.
std::vector<std::string> wrap_indented(const std::string& cell, size_t width) {
  size_t indent = std::min(cell.find_first_not_of(' '), cell.size());
  if (indent >= width) return wrap(cell, width);
  std::vector<std::string> lines = wrap(cell.substr(indent), width - indent);
  for (std::string& line : lines) line.insert(0, indent, ' ');
  return lines;
}

}  // namespace

std::string table(const Style& style, const Rows& rows, std::span<const size_t> right) {
  std::vector<size_t> widths = natural_widths(rows);
  narrow(widths, right, static_cast<size_t>(std::max(style.width, 1)));
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<std::vector<std::string>> cells;
    size_t height = 1;
    for (size_t i = 0; i < rows[r].size(); ++i) {
      cells.push_back(wrap_indented(rows[r][i], widths[i]));
      height = std::max(height, cells.back().size());
    }
    for (size_t line = 0; line < height; ++line) {
      std::string text;
      for (size_t i = 0; i < cells.size(); ++i) {
        std::string cell = line < cells[i].size() ? cells[i][line] : std::string();
        if (r == 0) cell = paint(style, Tone::dim, cell);
        bool is_right = std::find(right.begin(), right.end(), i) != right.end();
        if (i > 0) text.append(kGap, ' ');
        text += is_right ? pad_left(cell, widths[i]) : pad(cell, widths[i]);
      }
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + '\n';
    }
  }
  return out;
}

}  // namespace meshwright::report
