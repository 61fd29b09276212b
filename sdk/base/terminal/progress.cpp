#include "sdk/base/terminal/progress.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sdk/base/plain_text.h"

namespace meshwright::report {
namespace {

constexpr std::string_view kRedraw = "\r\x1b[K";

}  // namespace

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return text::format("%lld s", static_cast<long long>(whole));
  if (whole < 3600)
    return text::format("%lld min %02lld s", static_cast<long long>(whole / 60),
                        static_cast<long long>(whole % 60));
  return text::format("%lld h %02lld min", static_cast<long long>(whole / 3600),
                      static_cast<long long>(whole / 60 % 60));
}

std::string progress_bar(const Style& style, double part, int cells) {
  int full = static_cast<int>(static_cast<double>(cells) * std::clamp(part, 0.0, 1.0));
  std::string bar;
  for (int i = 0; i < cells; ++i)
    bar += style.unicode ? (i < full ? "━" : "╌") : (i < full ? "=" : "-");
  return paint(style, Tone::green, bar);
}

std::string fit_line(std::vector<LineField> fields, int columns) {
  auto joined = [&] {
    std::string line;
    for (const LineField& field : fields) line += (line.empty() ? "" : "  ") + field.text;
    return line;
  };
  std::string line = joined();
  while (!fields.empty() && display_width(line) > static_cast<size_t>(std::max(columns, 0))) {
    fields.erase(
        std::max_element(fields.begin(), fields.end(),
                         [](const LineField& a, const LineField& b) { return a.spare < b.spare; }));
    line = joined();
  }
  return line;
}

WorkProgress::WorkProgress(Output& out, const Style& style, bool live, Unit unit, std::string name,
                           int64_t total)
    : out_(out),
      style_(style),
      live_(live),
      unit_(unit),
      name_(std::move(name)),
      total_(std::max<int64_t>(total, 1)) {}

void WorkProgress::begin(std::string name) {
  erase();
  name_ = std::move(name);
  done_ = 0;
  begun_ = said_ = Clock::now();
}

void WorkProgress::add(int64_t done) {
  done_ += done;
  const bool bytes = unit_ == Unit::bytes;
  if (bytes ? !live_ : done_ == total_) return;
  const auto now = Clock::now();
  if (now - said_ < std::chrono::milliseconds(live_ ? 100 : 10000)) return;
  said_ = now;
  const double seconds = std::chrono::duration<double>(now - begun_).count(),
               speed = static_cast<double>(done_) / std::max(seconds, 1e-3),
               part = static_cast<double>(done_) / static_cast<double>(total_);
  const std::string left =
      human_duration(static_cast<double>(std::max<int64_t>(total_ - done_, 0)) / speed) + " left";
  std::vector<LineField> fields;
  if (bytes)
    fields = {{name_, 1},
              {human_bytes(done_) + " of " + human_bytes(total_)},
              {human_bytes(static_cast<int64_t>(speed)) + "/s", 3},
              {left, 2}};
  else
    fields = {{name_, 2}, {text::format("%.0f%%", 100 * part)}, {left, 1}};
  std::string line = fit_line(std::move(fields), style_.width - 1);
  if (live_) {
    const int cells = std::min(style_.width - 1 - static_cast<int>(display_width(line)) - 2, 30);
    const std::string bar = cells < 8 ? "" : progress_bar(style_, part, cells);
    if (!bar.empty() && !bytes) line += "  " + bar;
    if (!bar.empty() && bytes && line.starts_with(name_)) line.insert(name_.size(), " " + bar);
    out_.write_data(kRedraw);
  }
  out_.write(live_ ? line : line + "\n");
  out_.flush();
  drawn_ = live_;
}

void WorkProgress::erase() {
  if (!std::exchange(drawn_, false)) return;
  try {
    out_.write_data(kRedraw);
    out_.flush();
  } catch (const WriteFailed&) {
    out_.give_up();
  }
}

}  // namespace meshwright::report
