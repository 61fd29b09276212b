// A rank that does as it is told, for the tests of the supervisor:
//   launch_rank RANK:COMMAND[=VALUE]...      RANK is a number or "all"; each rank obeys its own
//   commands in order launch_rank supervise N+R LOG_FOLDER ... starts N ranks of itself with the
//   rest of the arguments, and again up to R times
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "engine/launch/supervisor.h"

namespace {

int g_code = 0;
void leave(int) { ::_exit(g_code); }
int g_later_ms = 0;
void leave_later(int) {
  ::usleep(static_cast<useconds_t>(g_later_ms) * 1000);
  ::_exit(g_code);
}

void put(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

// Whether this process inherited a listening socket at the number it was told.
bool listens() {
  const char* fd = std::getenv("MESHWRIGHT_STORE_FD");
  int on = 0;
  socklen_t size = sizeof on;
  return fd != nullptr && ::getsockopt(std::atoi(fd), SOL_SOCKET, SO_ACCEPTCONN, &on, &size) == 0 &&
         on == 1;
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

void obey(const std::string& command, const std::string& value) {
  int number = std::atoi(value.c_str());
  if (command == "out") put(1, value + "\n");
  if (command == "err") put(2, value + "\n");
  if (command == "partial") put(1, value);
  if (command == "long") put(1, std::string(static_cast<size_t>(number), 'x'));
  if (command == "lines")
    for (int i = 0; i < number; ++i)
      put(i % 2 ? 1 : 2,
          std::string(40, static_cast<char>('a' + i % 20)) + " " + std::to_string(i) + "\n");
  if (command == "env")
    put(1,
        value + "=" + (std::getenv(value.c_str()) ? std::getenv(value.c_str()) : "(unset)") + "\n");
  if (command == "listens") put(1, listens() ? "listens\n" : "does not listen\n");
  if (command == "descriptors") put(1, "descriptors " + std::to_string(open_descriptors()) + "\n");
  if (command == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(number));
  if (command == "exit") ::_exit(number);
  if (command == "raise") ::raise(number);
  if (command == "ignore") std::signal(number, SIG_IGN);
  if (command == "leave") {  // SIGNAL:CODE: end with CODE when SIGNAL comes
    g_code = std::atoi(value.substr(value.find(':') + 1).c_str());
    std::signal(number, leave);
  }
  if (command == "later" &&
      std::sscanf(value.c_str(), "%d:%d:%d", &number, &g_code, &g_later_ms) == 3)
    std::signal(number, leave_later);
  if (command == "until")  // success from that restart on
    if (const char* restart = std::getenv("MESHWRIGHT_RESTART");
        restart != nullptr && std::atoi(restart) >= number)
      ::_exit(0);
  if (command == "follow" && !meshwright::launch::end_with_parent()) ::_exit(99);
  if (command == "pid") {
    std::string path = value + std::getenv("RANK");
    std::ofstream(path + ".new") << ::getpid() << "\n";
    std::rename((path + ".new").c_str(), path.c_str());
  }
  if (command == "child") {  // a process of the rank's own, which holds on to its output
    pid_t pid = ::fork();
    if (pid == 0) {
      ::sleep(1000);
      ::_exit(0);
    }
    std::ofstream(value + ".new") << pid << "\n";
    std::rename((value + ".new").c_str(), value.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3 && std::strcmp(argv[1], "supervise") == 0) {
    meshwright::launch::LocalJob job;
    job.argv = {"/proc/self/exe"};
    job.argv.insert(job.argv.end(), argv + 4, argv + argc);
    job.ranks = std::atoi(argv[2]);
    job.max_restarts = std::atoi(std::strchr(argv[2], '+') + 1);
    job.log_folder = argv[3];
    job.grace = std::chrono::milliseconds(500);
    return meshwright::launch::run_local_ranks(job);
  }
  const char* rank = std::getenv("RANK");
  if (rank == nullptr) return 98;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i], who = word.substr(0, word.find(':'));
    if (who != "all" && who != rank) continue;
    word.erase(0, who.size() + 1);
    size_t equals = word.find('=');
    obey(word.substr(0, equals), equals == std::string::npos ? "" : word.substr(equals + 1));
  }
  return 0;
}
