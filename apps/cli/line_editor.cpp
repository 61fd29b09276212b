#include "apps/cli/line_editor.h"

#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "meshwright/error.h"
#include "sdk/base/files/utf8.h"

namespace meshwright::cli {

namespace {

sigset_t only_sigint() {
  sigset_t out;
  ::sigemptyset(&out);
  ::sigaddset(&out, SIGINT);
  return out;
}

// libedit takes characters of more than one byte as the thread's locale has them.
class Letters {
 public:
  explicit Letters(locale_t locale)
      : before_(::uselocale(locale != nullptr ? locale : LC_GLOBAL_LOCALE)) {}
  ~Letters() { ::uselocale(before_); }
  Letters(const Letters&) = delete;
  Letters& operator=(const Letters&) = delete;

 private:
  locale_t before_;
};

}  // namespace

struct Interrupts::State {
  int fd = -1;
  std::atomic<bool> only_heard{false}, over{false}, waits{false};
  sigset_t before{};
};

Interrupts::Interrupts() : state_(std::make_unique<State>()) {
  state_->fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (state_->fd < 0)
    throw Error(ErrorCode::file_unreadable, "no descriptor is left to hear Ctrl-C with")
        .help("raise the limit of open files: ulimit -n");
  const sigset_t ours = only_sigint();
  ::pthread_sigmask(SIG_BLOCK, &ours, &state_->before);
  thread_ = std::thread([this] { wait(); });
}

void Interrupts::wait() const {
  const sigset_t ours = only_sigint();
  for (int number = 0; ::sigwait(&ours, &number) == 0;) {
    if (state_->over) return;
    if (!state_->only_heard || state_->waits.exchange(true)) {
      std::signal(SIGINT, SIG_DFL);
      ::pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
      ::kill(::getpid(), SIGINT);
    }
    const uint64_t one = 1;
    if (::write(state_->fd, &one, sizeof one) < 0) continue;  // it is readable already
  }
}

Interrupts::~Interrupts() {
  state_->over = true;
  ::pthread_kill(thread_.native_handle(), SIGINT);
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &state_->before, nullptr);
  ::close(state_->fd);
}

void Interrupts::only_heard() { state_->only_heard = true; }

bool Interrupts::heard() {
  uint64_t count = 0;
  const bool out = ::read(state_->fd, &count, sizeof count) > 0;
  if (out) state_->waits = false;
  return out;
}

int Interrupts::fd() const { return state_->fd; }

struct LineEditor::Parts {
  std::string prompt;
  Interrupts& interrupts;
  EditLine* line = nullptr;
  History* history = nullptr;
  locale_t letters = nullptr;
  bool interrupted = false;

  // A key, or what ends the line. In place of libedit's own, which would not hear of Ctrl-C.
  static int key(EditLine* line, wchar_t* out) {
    Parts* parts = nullptr;
    ::el_get(line, EL_CLIENTDATA, &parts);
    std::string bytes;
    for (;;) {
      pollfd both[] = {{STDIN_FILENO, POLLIN, 0}, {parts->interrupts.fd(), POLLIN, 0}};
      if (::poll(both, 2, -1) < 0) {
        if (errno == EINTR) continue;
        return -1;
      }
      if ((both[1].revents & POLLIN) != 0 && parts->interrupts.heard()) {
        parts->interrupted = true;
        return -1;
      }
      if (both[0].revents == 0) continue;
      char byte = 0;
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return static_cast<int>(n);
      bytes.push_back(byte);
      if (base::first_invalid(bytes) == bytes.size()) {
        *out = static_cast<wchar_t>(base::character_at(bytes, 0).code);
        return 1;
      }
      if (bytes.size() == 4) bytes.clear();  // no character
    }
  }
  static char* shown_prompt(EditLine* line) {
    Parts* parts = nullptr;
    ::el_get(line, EL_CLIENTDATA, &parts);
    return parts->prompt.data();
  }
};

LineEditor::LineEditor(std::string prompt, Interrupts& interrupts)
    : parts_(std::make_unique<Parts>(Parts{std::move(prompt), interrupts})) {
  for (const char* name : {"", "C.UTF-8"}) {
    if (parts_->letters != nullptr) ::freelocale(parts_->letters);
    parts_->letters = ::newlocale(LC_CTYPE_MASK, name, nullptr);
    const Letters letters(parts_->letters);
    if (MB_CUR_MAX > 1) break;
  }
  const Letters letters(parts_->letters);
  parts_->line = ::el_init("meshwright", stdin, stdout, stderr);
  parts_->history = ::history_init();
  if (parts_->line == nullptr || parts_->history == nullptr)
    throw Error(ErrorCode::out_of_memory, "libedit has no memory for a line");
  HistEvent event{};
  ::history(parts_->history, &event, H_SETSIZE, 1000);
  ::history(parts_->history, &event, H_SETUNIQUE, 1);
  ::el_set(parts_->line, EL_CLIENTDATA, parts_.get());
  ::el_set(parts_->line, EL_PROMPT, &Parts::shown_prompt);
  ::el_set(parts_->line, EL_EDITOR, "emacs");
  ::el_set(parts_->line, EL_HIST, ::history, parts_->history);
  ::el_set(parts_->line, EL_GETCFN, &Parts::key);
  ::el_source(parts_->line, nullptr);  // ~/.editrc
}

LineEditor::~LineEditor() {
  if (parts_->line != nullptr) ::el_end(parts_->line);
  if (parts_->history != nullptr) ::history_end(parts_->history);
  if (parts_->letters != nullptr) ::freelocale(parts_->letters);
}

LineEditor::Read LineEditor::next() {
  const Letters letters(parts_->letters);
  parts_->interrupted = false;
  int count = 0;
  // Before the prompt stands there: libedit itself waits for the first key.
  ::el_set(parts_->line, EL_PREP_TERM, 1);
  const char* line = ::el_gets(parts_->line, &count);
  if (parts_->interrupted) {
    ::el_reset(parts_->line);
    return {Kind::interrupted};
  }
  if (line == nullptr || count <= 0) return {Kind::end};
  std::string out(line, static_cast<size_t>(count));
  if (out.ends_with('\n')) out.pop_back();
  if (!out.empty()) {
    HistEvent event{};
    ::history(parts_->history, &event, H_ENTER, out.c_str());
  }
  return {Kind::line, std::move(out)};
}

std::optional<std::string> plain_line() {
  std::string out;
  if (!std::getline(std::cin, out)) return std::nullopt;
  if (out.ends_with('\r')) out.pop_back();
  return out;
}

}  // namespace meshwright::cli
