// What the ranks print, on its way to the user's streams and to the logs.
#pragma once

#include <poll.h>

#include <string_view>

#include "engine/launch/spawn.h"

namespace meshwright::launch {

// The user's two streams. A reader that went away or does not read must neither end the ranks nor
// keep a signal from them.
class Sink {
 public:
  Sink(int out_fd, int err_fd);
  // Text of the job's own output, which may stop in the middle of a line (a progress line does).
  void live(std::string_view text);
  // Whole lines.
  void out(std::string_view lines) { around(out_, lines); }
  void err(std::string_view lines) { around(err_, lines); }
  bool terminal() const { return terminal_; }
  // After this a stuck reader loses text instead of making us wait.
  void hurry() { hurry_ = true; }

 private:
  struct Target {
    int fd;
    bool gone = false;
  };
  void around(Target& target, std::string_view lines);
  void write(Target& target, std::string_view text);
  Target out_, err_;
  bool terminal_;             // both streams are
  bool within_line_ = false;  // of live()
  bool hurry_ = false;
};

// LocalJob::begun.
bool has_begun(const LocalJob& job);

// Both streams of one rank.
class RankOutput {
 public:
  // The log goes on after what earlier runs and restarts left in it, once the run has begun. Throws
  // Error(output_unwritable) when it cannot be written.
  RankOutput(const LocalJob& job, Sink& sink, int64_t number, int64_t restart, Descriptor out,
             Descriptor err);
  void watch(std::vector<pollfd>& fds) const;
  void read();    // what is there, up to a limit: a chatty rank must not silence the others
  void finish();  // the process has ended: all the rest
  // The rank's error message, held back until now; with it the rest of its standard error. Without
  // prefixes.
  std::string take_held();
  bool said_error() const { return !said_error_.empty(); }  // ever
  // The code of the first one, as "E0601"; empty: none.
  const std::string& said() const { return said_error_; }
  std::string prefixed(std::string_view lines) const;
  // Shows what was held back for so long, or is so long, that the rank evidently did not end over
  // it.
  void release_old();

 private:
  struct Stream {
    Descriptor fd;
    bool is_err = false;
    std::string line;  // an unfinished one
  };
  bool read_some(Stream& stream);  // false: nothing there now
  void take(Stream& stream, std::string_view text);
  void show(Stream& stream, std::string_view line);
  void log(std::string_view text);
  void open_log();

  const LocalJob& job_;
  Sink& sink_;
  int64_t number_, restart_;
  std::string prefix_;
  Stream out_, err_;
  Descriptor log_;
  std::string log_path_;
  bool early_ = false;  // the run has not begun, and this is held back:
  std::string early_text_;
  std::string held_;
  bool holding_ = false;
  std::string said_error_;
  std::chrono::steady_clock::time_point held_since_;
};

}  // namespace meshwright::launch
