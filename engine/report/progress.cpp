#include "engine/report/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace meshwright::report {

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  auto whole = static_cast<int64_t>(std::llround(seconds));
  char text[64];
  if (whole < 60)
    std::snprintf(text, sizeof text, "%lld s", static_cast<long long>(whole));
  else if (whole < 3600)
    std::snprintf(text, sizeof text, "%lld min %02lld s", static_cast<long long>(whole / 60), static_cast<long long>(whole % 60));
  else
    std::snprintf(text, sizeof text, "%lld h %02lld min", static_cast<long long>(whole / 3600), static_cast<long long>(whole / 60 % 60));
  return text;
}

std::string progress_bar(const Style& style, double part, int cells) {
  int full = static_cast<int>(static_cast<double>(cells) * std::clamp(part, 0.0, 1.0));
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += style.unicode ? (i < full ? "━" : "╌") : (i < full ? "=" : "-");
  return paint(style, Tone::green, bar);
}

ByteProgress::ByteProgress(Output& out, const Style& style, bool live, std::string doing, int64_t total)
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
    out_.write("\r\x1b[K");
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
  double seconds = std::chrono::duration<double>(now - begin_).count(), speed = static_cast<double>(done_) / std::max(seconds, 1e-3),
         part = static_cast<double>(done_) / static_cast<double>(std::max<int64_t>(total_, 1));
  std::string text = "  " + human_bytes(done_) + " of " + human_bytes(total_) + "  " + human_bytes(static_cast<int64_t>(speed)) + "/s  " +
                     human_duration(static_cast<double>(std::max<int64_t>(total_ - done_, 0)) / std::max(speed, 1.0)) + " left";
  int cells = std::min(style_.width - static_cast<int>(doing_.size() + text.size()) - 2, 30);
  std::string line = doing_ + " " + (cells >= 8 ? progress_bar(style_, part, cells) : "") + text;
  if (cells < 8 && line.size() + 1 > static_cast<size_t>(style_.width)) line.resize(static_cast<size_t>(std::max(style_.width - 1, 0)));
  out_.write("\r\x1b[K" + line);
  out_.flush();
  drawn_ = true;
}

}  // namespace meshwright::report
