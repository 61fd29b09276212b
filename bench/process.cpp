// bench_process RUNS COMMAND [ARGUMENT...]: wall time and peak memory of whole processes, as one
// line. Output of the command is thrown away; a command that fails ends the measurement.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  int runs = argc > 2 ? std::atoi(argv[1]) : 0;
  if (runs < 1) {
    std::fprintf(stderr, "usage: bench_process RUNS COMMAND [ARGUMENT...]\n");
    return 2;
  }
  std::vector<double> times;
  long peak_kib = 0;
  for (int run = 0; run < runs; ++run) {
    auto start = std::chrono::steady_clock::now();
    pid_t child = fork();
    if (child < 0) {
      std::perror("fork");
      return 1;
    }
    if (child == 0) {
      int null = open("/dev/null", O_WRONLY);
      if (null < 0 || dup2(null, STDOUT_FILENO) < 0) _exit(126);
      execvp(argv[2], argv + 2);
      _exit(127);
    }
    int status = 0;
    rusage usage{};
    if (wait4(child, &status, 0, &usage) != child || !WIFEXITED(status) ||
        WEXITSTATUS(status) != 0) {
      std::fprintf(stderr, "%s failed\n", argv[2]);
      return 1;
    }
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
    peak_kib = std::max(peak_kib, usage.ru_maxrss);
  }
  std::sort(times.begin(), times.end());
  std::printf("%9.1f ms median  %9.1f ms worst  %7.1f MiB peak\n", times[times.size() / 2],
              times.back(), static_cast<double>(peak_kib) / 1024);
  return 0;
}
