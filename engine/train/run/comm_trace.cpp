#include "engine/train/run/comm_trace.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "engine/launch/rank_file.h"
#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/supervisor.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/host_facts.h"

namespace meshwright::train {

namespace fs = std::filesystem;

namespace {

// A disk that does not answer must not keep a rank from ending.
constexpr auto kWritePatience = std::chrono::seconds(5);
// What the handler and the destructor say to the thread.
constexpr char kEndWord = 'e', kOver = 'o';
// After a signal to end: a rank that begins no collective for so long may hang.
constexpr int64_t kIdleMs = 2000, kLookMs = 500;
// In the handler: longer than the file takes, shorter than the launcher waits before SIGKILL.
constexpr int kPauseMs = 3000;

}  // namespace

void CommTrace::clear(const fs::path& run) noexcept {
  base::remove_tree(run / postmortem::kFolder);
}

CommTrace::CommTrace(World& world, const fs::path& run)
    : log_(detail::collective_log(world)),
      rank_(world.rank()),
      world_(world.size()),
      folder_(run / postmortem::kFolder),
      file_(folder_ / postmortem::file_name(world.rank())) {}

CommTrace::~CommTrace() {
  if (!thread_.joinable()) return;
  std::signal(launch::kEnd, SIG_DFL);
  watching_ = nullptr;
  // Told by a word: a child by fork() has this end of the pipe too, so it may never end.
  over_ = true;
  if (const char word = kOver; ::write(tells_, &word, 1) == 1) {
  }
  thread_.join();
  ::close(tells_);
  ::close(listens_);
}

// What is written down may go on changing meanwhile, but for a rank that was told to end.
void CommTrace::write(const std::string& why, bool error) {
  postmortem::RankFile file;
  file.rank = rank_;
  file.world = world_;
  file.host = host_name();
  file.process = ::getpid();
  file.attempt = launch::detect_ranks(launch::process_environment())
                     .value_or(launch::RankEnvironment{})
                     .restart;
  file.why = why;
  file.error = error;
  file.record = log_.read();
  rendezvous::bounded(kWritePatience, [folder = folder_, path = file_, text = to_text(file)] {
    base::make_folders(folder);
    base::write_durably(path, text);
  });
  written_ = true;
}

void CommTrace::failed(const Error& error) noexcept {
  if (world_ == 1) return;
  writing_ = true;
  try {
    const std::string what = error.what();
    std::lock_guard lock(mutex_);
    write(what.substr(0, what.find('\n')), /*error=*/true);
  } catch (...) {  // the run's own error is what matters
  }
  writing_ = false;
}

void CommTrace::on_success() noexcept {
  std::lock_guard lock(mutex_);
  if (!written_) return;
  std::error_code failed;
  fs::remove(file_, failed);
  fs::remove(folder_, failed);  // where it was the last
}

// The main thread stays in here until the file is there, so that it does not find broken
// connections meanwhile and say so; with memory of its own half allocated it goes on in the end,
// and the file with it.
void CommTrace::on_signal(int number) {
  const int before = errno;
  // In a child by fork() the pipe is its parent's.
  if (CommTrace* self = watching_.load(); self != nullptr && self->process_ == ::getpid()) {
    self->log_.freeze();
    if (::write(self->tells_, &kEndWord, 1) == 1) {
      if (::getpid() == ::gettid() && !writing_) ::poll(nullptr, 0, kPauseMs);
      errno = before;
      return;
    }
  }
  std::signal(number, SIG_DFL);
  ::raise(number);
  errno = before;
}

void CommTrace::watch(std::function<std::string()> stop_signal) {
  int ends[2];
  if (world_ == 1 || ::pipe2(ends, O_CLOEXEC) != 0) return;
  listens_ = ends[0];
  tells_ = ends[1];
  process_ = ::getpid();
  stop_signal_ = std::move(stop_signal);
  sigset_t all, usual;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &usual);  // handlers run in other threads
  thread_ = std::thread([this] { listen(); });
  ::pthread_sigmask(SIG_SETMASK, &usual, nullptr);
  watching_ = this;
  struct sigaction ours{};
  ours.sa_handler = &CommTrace::on_signal;
  ours.sa_flags = SA_RESTART | SA_ONSTACK;  // of the main thread: see SignalThread
  ::sigemptyset(&ours.sa_mask);
  ::sigaction(launch::kEnd, &ours, nullptr);
}

void CommTrace::listen() {
  int64_t begun = log_.begun(), since = base::monotonic_ms();
  bool told = false;
  for (;;) {
    pollfd news{listens_, POLLIN, 0};
    const int ready = ::poll(&news, 1, static_cast<int>(kLookMs));
    if (over_ || (ready < 0 && errno != EINTR)) return;
    if (ready > 0) {
      char word = 0;
      if (::read(listens_, &word, 1) != 1 || word == kOver) return;
      try {
        std::lock_guard lock(mutex_);
        if (!written_ || told) write("told to end by the launcher", /*error=*/false);
      } catch (...) {  // then it ends without
      }
      std::signal(launch::kEnd, SIG_DFL);
      ::kill(::getpid(), launch::kEnd);
      return;
    }
    const int64_t now = base::monotonic_ms();
    const std::string stop_signal = stop_signal_();
    if (const int64_t all = log_.begun(); all != begun || stop_signal.empty()) {
      begun = all;
      since = now;
      continue;
    }
    if (told || now - since < kIdleMs) continue;
    try {
      std::lock_guard lock(mutex_);
      if (!written_)
        write(stop_signal + " asked it to end, and no collective has begun since", false);
      told = true;
    } catch (...) {  // once more at the next look
    }
  }
}

}  // namespace meshwright::train
