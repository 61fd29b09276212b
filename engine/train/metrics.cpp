#include "engine/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "engine/files/durable.h"
#include "engine/report/progress.h"
#include "engine/train/expert_load.h"
#include "meshwright/error.h"

namespace meshwright::train {

namespace fs = std::filesystem;

namespace {

// JSON has no words for what is not finite.
std::string number(double value, const char* format = "%.9g") {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string format(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

double per_second(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) * 1000 / ms : 0; }

}  // namespace

void unwritable(const fs::path& path, int reason) { throw files::unwritable(path, reason).key("run.dir"); }

// The rows of metrics.jsonl of the first `steps` steps, whole lines only.
std::string rows_before(const fs::path& path, int64_t steps) {
  std::ifstream in(path, std::ios::binary);
  std::string out, line;
  while (std::getline(in, line)) {
    long long step = 0;
    if (in.eof() || std::sscanf(line.c_str(), "{\"step\": %lld", &step) != 1 || step >= steps) continue;
    out += line + "\n";
  }
  return out;
}

RunFolder::RunFolder(fs::path path, std::optional<int64_t> steps) : path_(std::move(path)) {
  std::error_code failed;
  fs::create_directories(path_, failed);
  if (failed) unwritable(path_, failed.value());
  fs::path metrics = path_ / "metrics.jsonl";
  // Anything but a file stands there on purpose (a pipe, a link to a device), or is an error soon.
  bool has_rows = fs::is_regular_file(metrics, failed) && fs::file_size(metrics, failed) > 0;
  if (has_rows && steps) {
    put("metrics.jsonl", rows_before(metrics, *steps));
  } else if (has_rows) {
    int n = 1;
    while (fs::exists(path_ / ("metrics." + std::to_string(n) + ".jsonl"), failed)) ++n;
    kept_ = (path_ / ("metrics." + std::to_string(n) + ".jsonl")).string();
    fs::rename(metrics, kept_, failed);
    if (failed) unwritable(kept_, failed.value());
  }
  metrics_ = Lines(metrics, /*keep=*/steps.has_value());
  log_ = Lines(path_ / "run.log", /*keep=*/true);
}

RunFolder::Lines::Lines(fs::path path, bool keep) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (keep ? 0 : O_TRUNC), 0644);
  if (fd_ < 0) unwritable(path_, errno);
}

RunFolder::Lines::~Lines() {
  if (fd_ >= 0) ::close(fd_);
}

RunFolder::Lines::Lines(Lines&& other) noexcept { *this = std::move(other); }
RunFolder::Lines& RunFolder::Lines::operator=(Lines&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void RunFolder::Lines::append(std::string_view line) {
  off_t before = ::lseek(fd_, 0, SEEK_END);
  while (!line.empty()) {
    ssize_t n = ::write(fd_, line.data(), line.size());
    if (n > 0) {
      line.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      int reason = n == 0 ? ENOSPC : errno;
      if (before >= 0 && ::ftruncate(fd_, before) != 0 && errno == EIO) reason = EIO;
      unwritable(path_, reason);
    }
  }
}

void RunFolder::put(const std::string& name, const std::string& contents) const {
  try {
    files::write_durably(path_ / name, contents);
  } catch (const Error& error) {
    throw Error(error).key("run.dir");
  }
}

void RunFolder::sync() {
  metrics_.sync();
  log_.sync();
}

void RunFolder::Lines::sync() {
  // A pipe or a terminal has nothing to sync.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS) unwritable(path_, errno);
}

void RunFolder::step(const StepResult& r, const StepCost& c) {
  metrics_.append("{\"step\": " + std::to_string(r.step) + ", \"loss\": " + number(r.loss) + ", \"grad_norm\": " + number(r.grad_norm) +
                  ", \"lr\": " + number(r.lr) + ", \"tokens\": " + std::to_string(r.count) + ", \"step_ms\": " + number(c.step_ms, "%.3f") +
                  ", \"tokens_per_second\": " + number(per_second(r.count, c.step_ms), "%.1f") +
                  ", \"memory_bytes\": " + std::to_string(c.memory_bytes) + load_fields(r) + "}\n");
}

void RunFolder::validation(int64_t step, double loss) {
  metrics_.append("{\"step\": " + std::to_string(step) + ", \"validation_loss\": " + number(loss) + "}\n");
}

void RunFolder::log(const std::string& line) { log_.append(line + "\n"); }

Progress::Progress(report::Output& out, const report::Style& style, bool live, int64_t steps)
    : out_(out), style_(style), live_(live), steps_(steps) {}

std::string Progress::line(const StepResult& r, const StepCost& c, int64_t steps) {
  return format("step %lld/%lld  loss %.4f  grad norm %.3f  lr %.2e  %s tokens/s  %.0f ms", static_cast<long long>(r.step) + 1,
                static_cast<long long>(steps), r.loss, r.grad_norm, r.lr,
                report::human_count(static_cast<int64_t>(per_second(r.count, c.step_ms))).c_str(), c.step_ms) +
         load_words(r);
}

void Progress::step(const StepResult& result, const StepCost& cost) {
  last_ = result;
  cost_ = cost;
  smooth_ms_ = smooth_ms_ == 0 ? cost.step_ms : 0.9 * smooth_ms_ + 0.1 * cost.step_ms;
  auto now = std::chrono::steady_clock::now();
  if (live_) {
    if (now - said_ < std::chrono::milliseconds(100) && result.step + 1 < steps_) return;
    said_ = now;
    draw();
  } else if (result.step == 0 || result.step + 1 == steps_ || now - said_ >= std::chrono::seconds(10)) {
    said_ = now;
    double left = smooth_ms_ / 1000 * static_cast<double>(steps_ - result.step - 1);
    emit(line(result, cost, steps_) + (result.step + 1 < steps_ ? "  " + report::human_duration(left) + " left" : "") + "\n");
  }
}

void Progress::emit(const std::string& text) {
  if (gone_) return;
  try {
    out_.write(text);
    out_.flush();
  } catch (const report::WriteFailed& failure) {
    gone_ = true;
    out_.give_up();
    if (!failure.closed_pipe()) std::fprintf(stderr, "warning: %s; the run goes on, and its run.log has every line\n", failure.what());
  }
}

void Progress::draw() {
  int64_t done = last_.step + 1;
  double left = smooth_ms_ / 1000 * static_cast<double>(steps_ - done);
  std::string text = format("%lld/%lld  loss %.4f", static_cast<long long>(done), static_cast<long long>(steps_), last_.loss);
  if (validation_ >= 0) text += format("  validation %.4f", validation_);
  text += format("  %s tok/s  ", report::human_count(static_cast<int64_t>(per_second(last_.count, cost_.step_ms))).c_str()) +
          report::human_duration(left) + " left";
  int room = style_.width - static_cast<int>(text.size()) - 4;
  std::string bar;
  if (room >= 10)
    bar = report::progress_bar(style_, static_cast<double>(done) / static_cast<double>(std::max<int64_t>(steps_, 1)), std::min(room, 30)) +
          "  ";
  if (text.size() + 1 > static_cast<size_t>(style_.width)) text.resize(static_cast<size_t>(std::max(style_.width - 1, 0)));
  emit("\r\x1b[K" + bar + text);
  drawn_ = true;
}

void Progress::say(const std::string& text) {
  emit((drawn_ ? "\r\x1b[K" : "") + text + "\n");
  drawn_ = false;
}

void Progress::validation(int64_t step, double loss) {
  validation_ = loss;
  say(format("step %lld/%lld  validation loss %.4f", static_cast<long long>(step) + 1, static_cast<long long>(steps_), loss));
}

void Progress::finish() {
  if (drawn_) emit("\n");
  drawn_ = false;
}

}  // namespace meshwright::train
