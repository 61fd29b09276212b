#include <fcntl.h>

#include <csignal>

#include "apps/cli/verb.h"

namespace {

// A descriptor below 3 that was closed would become the first file or pipe that is opened, and be
// written to as standard output. Each is opened the other way round, so that its use still fails as
// it would have.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

// What a parent ignores or blocks would otherwise hold here, where nobody has asked for it:
// children would end unseen, signals would reach nobody. nohup and a shell's background jobs mean
// what they ignore.
void set_signals() {
  sigset_t meant, none;
  ::sigemptyset(&meant);
  for (int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU})
    ::sigaddset(&meant, signal);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    struct sigaction now{};
    if (::sigismember(&meant, signal) == 1 || ::sigaction(signal, nullptr, &now) != 0) continue;
    if (now.sa_handler == SIG_IGN) std::signal(signal, SIG_DFL);
  }
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  set_signals();
  return meshwright::cli::run(argc, argv);
}
