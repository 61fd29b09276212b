#include "engine/launch/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "meshwright/error.h"
#include "sdk/base/plain_text.h"

namespace meshwright::launch {

namespace {

constexpr size_t kLongLine = 16384;
constexpr auto kHold = std::chrono::seconds(3);
constexpr off_t kLongLog = 16 << 20;

std::string separator(int64_t restart) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  return text::format_time("=== %Y-%m-%dT%H:%M:%SZ", parts) +
         (restart == 0 ? ": another start" : ": restart " + std::to_string(restart)) + " ===\n";
}

}  // namespace

Sink::Sink(int out_fd, int err_fd)
    : out_{out_fd}, err_{err_fd}, terminal_(::isatty(out_fd) == 1 && ::isatty(err_fd) == 1) {}

void Sink::write(Target& target, std::string_view text) {
  while (!text.empty() && !target.gone) {
    // So little at a time never blocks once there is room, and a signal ends the wait for it.
    pollfd ready{target.fd, POLLOUT, 0};
    int n = ::poll(&ready, 1, hurry_ ? 200 : -1);
    if (n <= 0) return;
    ssize_t written = ::write(target.fd, text.data(), std::min<size_t>(text.size(), 4096));
    if (written > 0)
      text.remove_prefix(static_cast<size_t>(written));
    else if (errno != EINTR && errno != EAGAIN) {
      target.gone = true;
      // A reader that goes away wants no more; a full disk is worth a word where there still is
      // somewhere to say it.
      if (errno != EPIPE && &target == &out_)
        around(err_, std::string("warning: cannot write to standard output: ") +
                         std::strerror(errno) +
                         "; the ranks go on, and their output is in the logs alone\n");
    }
  }
}

void Sink::live(std::string_view text) {
  if (text.empty()) return;
  write(out_, text);
  within_line_ = text.back() != '\n';
}

void Sink::around(Target& target, std::string_view lines) {
  if (lines.empty()) return;
  // The progress line is drawn again at its next turn.
  if (within_line_ && terminal_) {
    write(target, "\r\x1b[K");
    within_line_ = false;
  }
  write(target, lines);
}

RankOutput::RankOutput(const LocalJob& job, Sink& sink, int64_t number, int64_t restart,
                       Descriptor out, Descriptor err)
    : job_(job),
      sink_(sink),
      number_(number),
      restart_(restart),
      prefix_(number == 0 ? "" : "[rank " + std::to_string(number) + "] ") {
  out_.fd = std::move(out);
  err_.fd = std::move(err);
  err_.is_err = true;
  if (job.log_folder.empty()) return;
  log_path_ = (job.log_folder / ("rank_" + std::to_string(number) + ".log")).string();
  early_ = !has_begun(job);
  if (!early_) open_log();
}

void RankOutput::open_log() {
  // The log of a former run stays: an error of that run may have named it. One that has grown long
  // makes way for the next, once.
  struct stat status{};
  bool former = ::stat(log_path_.c_str(), &status) == 0 && status.st_size > 0;
  if (former && restart_ == 0 && status.st_size > kLongLog) {
    std::string older = (job_.log_folder / ("rank_" + std::to_string(number_) + ".1.log")).string();
    former = ::rename(log_path_.c_str(), older.c_str()) != 0;
  }
  // The folder may have been removed since an earlier attempt.
  std::error_code failed;
  if (restart_ > 0) std::filesystem::create_directories(job_.log_folder, failed);
  // What stands there may be a pipe that nobody reads.
  log_ = Descriptor(
      ::open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644));
  if (log_.get() < 0)
    throw Error(ErrorCode::output_unwritable,
                "cannot write " + log_path_ + ": " + std::strerror(errno))
        .key("run.dir")
        .help("set run.dir to a folder that may be written to");
  if (former) log(separator(restart_));
}

void RankOutput::watch(std::vector<pollfd>& fds) const {
  for (const Stream* stream : {&out_, &err_})
    if (stream->fd.get() >= 0) fds.push_back({stream->fd.get(), POLLIN, 0});
}

void RankOutput::log(std::string_view text) {
  constexpr size_t kMostEarly = 1 << 20;
  if (early_ && has_begun(job_)) {
    early_ = false;
    try {
      open_log();
    } catch (const Error& error) {
      sink_.err("warning: " + error.message() + "; this rank's output is not kept\n");
    }
    log(std::exchange(early_text_, {}));
  }
  if (early_) {
    if (early_text_.size() < kMostEarly) early_text_ += text;
    return;
  }
  while (!text.empty() && log_.get() >= 0) {
    ssize_t n = ::write(log_.get(), text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      sink_.err("warning: cannot write " + log_path_ + ": " + std::strerror(errno) +
                "; the rest of this rank's output is not kept\n");
      log_.close();
    }
  }
}

void RankOutput::show(Stream& stream, std::string_view line) {
  std::string text(line);
  if (!text.ends_with('\n')) text += '\n';
  if (stream.is_err && line.starts_with("error[") && !holding_) {
    constexpr size_t kBefore = std::string_view("error[").size(), kCode = 5;
    holding_ = true;
    if (said_error_.empty()) said_error_ = line.substr(kBefore, kCode);
    held_since_ = std::chrono::steady_clock::now();
  }
  if (stream.is_err && holding_)
    held_ += text;
  else if (stream.is_err)
    sink_.err(prefixed(text));
  else
    sink_.out(prefixed(text));
}

std::string RankOutput::prefixed(std::string_view lines) const {
  std::string out;
  for (size_t at = 0, end; at < lines.size(); at = end) {
    end = std::min(lines.find('\n', at), lines.size() - 1) + 1;
    out.append(prefix_).append(lines.substr(at, end - at));
  }
  return out;
}

void RankOutput::take(Stream& stream, std::string_view text) {
  log(text);
  if (prefix_.empty() && !stream.is_err && sink_.terminal()) return sink_.live(text);
  stream.line += text;
  size_t at = 0;
  for (size_t end; (end = stream.line.find('\n', at)) != std::string::npos ||
                   stream.line.size() - at > kLongLine;) {
    // A line without an end is cut, so that it neither waits nor grows for ever.
    size_t stop = end == std::string::npos ? at + kLongLine : end + 1;
    std::string_view line = std::string_view(stream.line).substr(at, stop - at);
    if (end == std::string::npos && prefix_.empty() && !stream.is_err)
      sink_.live(line);
    else
      show(stream, line);
    at = stop;
  }
  stream.line.erase(0, at);
}

bool RankOutput::read_some(Stream& stream) {
  char buffer[65536];
  if (stream.fd.get() < 0) return false;
  ssize_t n = ::read(stream.fd.get(), buffer, sizeof buffer);
  if (n > 0) {
    take(stream, {buffer, static_cast<size_t>(n)});
    return true;
  }
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && errno == EAGAIN) return false;
  if (!stream.line.empty()) show(stream, std::exchange(stream.line, {}));
  stream.fd.close();
  return false;
}

void RankOutput::read() {
  for (Stream* stream : {&out_, &err_})
    for (int i = 0; i < 4 && read_some(*stream); ++i) {
    }
}

void RankOutput::finish() {
  for (Stream* stream : {&out_, &err_}) {
    // Whoever still holds the other end is not of the rank; a pipe keeps at most 1 MiB.
    for (int i = 0; i < 64 && read_some(*stream); ++i) {
    }
    if (!stream->line.empty()) show(*stream, std::exchange(stream->line, {}));
    stream->fd.close();
  }
  log({});  // what was held back of a run that has begun meanwhile
}

std::string RankOutput::take_held() {
  holding_ = false;
  return std::exchange(held_, {});
}

void RankOutput::release_old() {
  if (holding_ && (held_.size() > 65536 || std::chrono::steady_clock::now() - held_since_ > kHold))
    sink_.err(prefixed(take_held()));
}

}  // namespace meshwright::launch
