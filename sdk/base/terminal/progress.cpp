#include "sdk/base/terminal/progress.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sdk/base/plain_text.h"

namespace meshwright::report {

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

ByteProgress::ByteProgress(Output& out, const Style& style, bool live, std::string doing,
                           int64_t total)
    : out_(out),
      style_(style),
      live_(live),
      doing_(std::move(doing)),
      total_(total),
      begin_(std::chrono::steady_clock::now()),
      said_(begin_) {}

ByteProgress::~ByteProgress() {
  if (!drawn_) return;
  try {
    out_.write_data("\r\x1b[K");
    out_.flush();
  } catch (const WriteFailed&) {
    out_.give_up();
  }
}

void ByteProgress::add(int64_t bytes) {
  done_ += bytes;
  auto now = std::chrono::steady_clock::now();
  if (!live_ || now - said_ < std::chrono::milliseconds(100)) return;
  said_ = now;
  double seconds = std::chrono::duration<double>(now - begin_).count(),
         speed = static_cast<double>(done_) / std::max(seconds, 1e-3),
         part = static_cast<double>(done_) / static_cast<double>(std::max<int64_t>(total_, 1));
  std::vector<LineField> fields = {
      {doing_, 1},
      {human_bytes(done_) + " of " + human_bytes(total_)},
      {human_bytes(static_cast<int64_t>(speed)) + "/s", 3},
      {human_duration(static_cast<double>(std::max<int64_t>(total_ - done_, 0)) /
                      std::max(speed, 1.0)) +
           " left",
       2}};
  std::string line = fit_line(fields, style_.width - 1);
  int cells = std::min(style_.width - 1 - static_cast<int>(display_width(line)) - 2, 30);
  if (cells >= 8 && line.starts_with(doing_))
    line.insert(doing_.size(), " " + progress_bar(style_, part, cells));
  out_.write_data("\r\x1b[K");
  out_.write(line);
  out_.flush();
  drawn_ = true;
}

CountProgress::CountProgress(const Style& style, bool live, bool leads, int64_t count)
    : style_(style), live_(live), leads_(leads), count_(std::max<int64_t>(count, 1)) {}

CountProgress::~CountProgress() { erase(); }

void CountProgress::begin(std::string name) {
  erase();
  name_ = std::move(name);
  done_ = 0;
  begun_ = said_ = Clock::now();
}

void CountProgress::step() {
  ++done_;
  const auto every = live_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10000);
  if (!leads_ || done_ == count_ || Clock::now() - said_ < every) return;
  said_ = Clock::now();
  const double part = static_cast<double>(done_) / static_cast<double>(count_),
               left = std::chrono::duration<double>(said_ - begun_).count() * (1 - part) / part;
  const std::string percent = text::format("%.0f%%", 100 * part);
  const std::string text =
      fit_line({{name_, 2}, {percent}, {human_duration(left) + " left", 1}}, style_.width - 1);
  if (live_)
    out_.write_data("\r\x1b[K" + screened(text + "  " + bar(part, text)));
  else
    out_.write(text + "\n");
  out_.flush();
  drawn_ = live_;
}

std::string CountProgress::bar(double part, const std::string& text) const {
  const int room = style_.width - static_cast<int>(text.size()) - 4;
  return room >= 10 ? progress_bar(style_, part, std::min(room, 30)) : "";
}

void CountProgress::erase() {
  if (!std::exchange(drawn_, false)) return;
  out_.write_data("\r\x1b[K");
  out_.flush();
}

}  // namespace meshwright::report
