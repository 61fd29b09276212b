#include "engine/launch/supervisor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <set>

#include "meshwright/error.h"

extern char** environ;

namespace meshwright::launch {

namespace {

using Clock = std::chrono::steady_clock;

volatile sig_atomic_t g_signals = 0, g_signal = 0;
void on_signal(int number) {
  g_signal = number;
  g_signals = g_signals + 1;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a reader that went away must not end the ranks
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::string signal_name(int number) {
  const char* short_name = sigabbrev_np(number);
  return "signal " + std::to_string(number) + (short_name ? std::string(" (SIG") + short_name + ")" : std::string());
}

// A listening loopback socket: ranks meet at a port that nobody can take in between.
struct Listener {
  int fd = -1, port = 0;
  Listener() {
    fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(fd, 512) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw Error(ErrorCode::rendezvous_failed, std::string("cannot listen on 127.0.0.1: ") + std::strerror(errno));
    port = ntohs(address.sin_port);
  }
  ~Listener() {
    if (fd >= 0) ::close(fd);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
};

struct Stream {
  int fd = -1;
  int to = 1;
  bool prefix = false;
  std::string line;  // an unfinished one
};

struct Rank {
  int64_t number = 0;
  pid_t pid = -1;
  Stream out, err;
  int log = -1;
  std::string tail;  // of its standard error
  bool ended = false;
  int status = 0;
  Clock::time_point when;
};

class Supervisor {
 public:
  explicit Supervisor(const LocalJob& job) : job_(job) {}
  ~Supervisor();
  int run();

 private:
  void start(int64_t number, const Listener& listener);
  void pump(int timeout_ms);
  void drain(Rank& rank, Stream& stream);
  void emit(Rank& rank, Stream& stream, std::string_view text);
  void reap();
  void signal_all(int number);
  int verdict();
  bool all_ended() const;

  const LocalJob& job_;
  std::vector<Rank> ranks_;
  Clock::time_point deadline_;
  std::optional<Clock::time_point> told_;  // when we began to end the others
};

Supervisor::~Supervisor() {
  for (Rank& rank : ranks_) {
    if (rank.pid > 0 && !rank.ended) {
      ::kill(rank.pid, SIGKILL);
      ::waitpid(rank.pid, nullptr, 0);
    }
    for (int fd : {rank.out.fd, rank.err.fd, rank.log})
      if (fd >= 0) ::close(fd);
  }
}

void Supervisor::start(int64_t number, const Listener& listener) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0) throw Error(ErrorCode::rank_failed, std::string("cannot make a pipe: ") + std::strerror(errno));
  if (::pipe2(err, O_CLOEXEC) != 0) {
    ::close(out[0]), ::close(out[1]);
    throw Error(ErrorCode::rank_failed, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  std::vector<std::pair<std::string, std::string>> ours = job_.environment;
  std::string n = std::to_string(job_.ranks), r = std::to_string(number);
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::string>>{{"RANK", r},
                                                                  {"LOCAL_RANK", r},
                                                                  {"WORLD_SIZE", n},
                                                                  {"LOCAL_WORLD_SIZE", n},
                                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                                  {"MASTER_PORT", std::to_string(listener.port)},
                                                                  {"MESHWRIGHT_LOCAL_JOB", std::to_string(::getpid())}})
    ours.emplace_back(name, value);
  if (number == 0) ours.emplace_back("MESHWRIGHT_STORE_FD", "3");
  std::set<std::string> names{"TORCHELASTIC_RUN_ID", "MESHWRIGHT_STORE_FD"};
  for (const auto& [name, value] : ours) names.insert(name);
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string entry = *e;
    if (!names.contains(entry.substr(0, entry.find('=')))) environment.push_back(std::move(entry));
  }
  for (const auto& [name, value] : ours) environment.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (const std::string& word : job_.argv) argv.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& entry : environment) envp.push_back(const_cast<char*>(entry.c_str()));
  argv.push_back(nullptr), envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  if (number == 0) posix_spawn_file_actions_adddup2(&actions, listener.fd, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Their own group: a Ctrl-C at the terminal reaches them through us, once.
  sigset_t defaults;
  sigemptyset(&defaults);
  for (int s : {SIGINT, SIGTERM, SIGPIPE, SIGUSR1}) sigaddset(&defaults, s);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  Rank rank;
  rank.number = number;
  int failed = ::posix_spawnp(&rank.pid, argv[0], &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(out[1]), ::close(err[1]);
  rank.out = {out[0], job_.out_fd, number != 0, {}};
  rank.err = {err[0], job_.err_fd, true, {}};
  for (int fd : {out[0], err[0]}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  if (failed != 0) {
    rank.pid = -1;
    ranks_.push_back(std::move(rank));
    throw Error(ErrorCode::rank_failed, "cannot start " + job_.argv[0] + ": " + std::strerror(failed));
  }
  if (!job_.log_folder.empty()) {
    std::string path = (job_.log_folder / ("rank_" + r + ".log")).string();
    rank.log = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (rank.log < 0) {
      int reason = errno;
      ranks_.push_back(std::move(rank));
      throw Error(ErrorCode::output_unwritable, "cannot write " + path + ": " + std::strerror(reason));
    }
  }
  ranks_.push_back(std::move(rank));
}

void Supervisor::emit(Rank& rank, Stream& stream, std::string_view text) {
  if (rank.log >= 0) write_all(rank.log, text);
  if (&stream == &rank.err) {
    rank.tail += text;
    if (rank.tail.size() > 65536) rank.tail.erase(0, rank.tail.size() - 32768);
  }
  if (!stream.prefix) return write_all(stream.to, text);
  // Whole lines only, so that ranks do not write into each other's; a very long one is cut.
  stream.line += text;
  std::string whole;
  size_t at = 0;
  for (size_t end; (end = stream.line.find('\n', at)) != std::string::npos || stream.line.size() - at > 16384; at = end + 1) {
    bool cut = end == std::string::npos;
    if (cut) end = at + 16383;
    // One rank's errors need no mark; rank 0's messages are those of the job.
    if (job_.ranks > 1 && !(&stream == &rank.err && rank.number == 0)) whole += "[rank " + std::to_string(rank.number) + "] ";
    whole.append(stream.line, at, end - at + (cut ? 1 : 0));
    whole += '\n';
  }
  stream.line.erase(0, at);
  write_all(stream.to, whole);
}

void Supervisor::drain(Rank& rank, Stream& stream) {
  char buffer[65536];
  while (stream.fd >= 0) {
    ssize_t n = ::read(stream.fd, buffer, sizeof buffer);
    if (n > 0) {
      emit(rank, stream, {buffer, static_cast<size_t>(n)});
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      if (n < 0 && errno == EAGAIN) return;
      if (!stream.line.empty()) emit(rank, stream, "\n");
      ::close(stream.fd);
      stream.fd = -1;
    }
  }
}

void Supervisor::pump(int timeout_ms) {
  std::vector<pollfd> fds;
  for (Rank& rank : ranks_)
    for (Stream* stream : {&rank.out, &rank.err})
      if (stream->fd >= 0) fds.push_back({stream->fd, POLLIN, 0});
  ::poll(fds.data(), fds.size(), timeout_ms);
  for (Rank& rank : ranks_)
    for (Stream* stream : {&rank.out, &rank.err}) drain(rank, *stream);
}

void Supervisor::reap() {
  for (Rank& rank : ranks_) {
    if (rank.ended || rank.pid <= 0) continue;
    int status = 0;
    if (::waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
    rank.ended = true;
    rank.status = status;
    rank.when = Clock::now();
    for (Stream* stream : {&rank.out, &rank.err}) drain(rank, *stream);
  }
}

bool Supervisor::all_ended() const {
  for (const Rank& rank : ranks_)
    if (!rank.ended) return false;
  return true;
}

void Supervisor::signal_all(int number) {
  for (Rank& rank : ranks_)
    if (!rank.ended && rank.pid > 0) ::kill(rank.pid, number);
}

int code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// The rank at fault: by signal before by status, a lost connection (6) last; among equals the first to end.
int Supervisor::verdict() {
  const Rank* fault = nullptr;
  auto weight = [](const Rank& r) { return WIFSIGNALED(r.status) ? 0 : code_of(r.status) == 6 ? 2 : 1; };
  for (const Rank& rank : ranks_) {
    if (!rank.ended || code_of(rank.status) == 0) continue;
    // Ended by us.
    if (told_ && rank.when > *told_ && WIFSIGNALED(rank.status) && (WTERMSIG(rank.status) == SIGTERM || WTERMSIG(rank.status) == SIGKILL))
      continue;
    if (fault == nullptr || weight(rank) < weight(*fault) || (weight(rank) == weight(*fault) && rank.when < fault->when)) fault = &rank;
  }
  if (fault == nullptr) return 0;
  std::string who = "rank " + std::to_string(fault->number);
  if (WIFSIGNALED(fault->status)) {
    write_all(job_.err_fd, "error[E0505]: " + who + " was ended by " + signal_name(WTERMSIG(fault->status)) +
                               "\n  help: if nobody sent it, look for the kernel's out-of-memory killer (dmesg)\n");
  } else if (job_.ranks > 1) {
    std::string words = fault->tail;
    size_t at = words.rfind("error[");
    std::string said = at == std::string::npos ? std::string() : words.substr(at, words.find('\n', at) - at);
    write_all(job_.err_fd,
              who + " failed first (exit " + std::to_string(code_of(fault->status)) + ")" + (said.empty() ? "" : ": " + said) + "\n");
  }
  return code_of(fault->status);
}

int Supervisor::run() {
  struct sigaction action{}, old_int{}, old_term{}, old_usr{};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  g_signals = 0;
  g_signal = 0;
  ::sigaction(SIGINT, &action, &old_int);
  ::sigaction(SIGTERM, &action, &old_term);
  ::sigaction(SIGUSR1, &action, &old_usr);
  struct Restore {
    struct sigaction &i, &t, &u;
    ~Restore() {
      ::sigaction(SIGINT, &i, nullptr);
      ::sigaction(SIGTERM, &t, nullptr);
      ::sigaction(SIGUSR1, &u, nullptr);
    }
  } restore{old_int, old_term, old_usr};
  {
    Listener listener;
    for (int64_t r = 0; r < job_.ranks; ++r) start(r, listener);
  }
  int passed_on = 0;
  std::optional<Clock::time_point> first_failure;
  bool killed = false;
  while (!all_ended()) {
    pump(20);
    reap();
    if (int got = g_signals; got != passed_on) {
      signal_all(got >= 2 ? SIGKILL : g_signal);
      passed_on = got;
    }
    bool failed = false, real = false;
    for (const Rank& rank : ranks_)
      if (rank.ended && code_of(rank.status) != 0) {
        failed = true;
        real = real || WIFSIGNALED(rank.status) || code_of(rank.status) != 6;
      }
    if (!failed) continue;
    Clock::time_point now = Clock::now();
    if (!first_failure) first_failure = now;
    // The others see a broken connection and end with words of their own; what they had to say is in their logs by then.
    auto waited = now - *first_failure;
    if (!told_ && waited > (real ? std::chrono::milliseconds(300) : std::chrono::milliseconds(1000))) {
      signal_all(SIGTERM);
      told_ = now;
      deadline_ = now + job_.grace;
    }
    if (told_ && !killed && now > deadline_) {
      signal_all(SIGKILL);  // also wakes a stopped process
      killed = true;
    }
  }
  pump(0);
  int code = verdict();
  return code;
}

}  // namespace

int run_local_ranks(const LocalJob& job) {
  Supervisor supervisor(job);
  return supervisor.run();
}

}  // namespace meshwright::launch
