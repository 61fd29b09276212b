// [report] of a real run: what it leaves, what is refused, and what ends nothing.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "ran.h"
#include "tests/contents.h"

namespace monitors_cli_test {

namespace {

struct Runs : Folder {
  std::string train(const std::string& name, const std::string& sets) const {
    return "train configs/ddp_cpu.toml --set run.dir='" + path.string() +
           "' --set run.name=" + name +
           " --set step_scheduler.global_batch_size=2 --set dataset.seq_len=16 --set "
           "step_scheduler.max_steps=" +
           sets;
  }
  std::string contents(const std::string& file) const { return ::contents(path / file); }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int64_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

// A port of this machine that somebody listens at.
struct Taken {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  int port = 0;
  Taken() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    REQUIRE(::listen(fd, 1) == 0);
    REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    port = ntohs(at.sin_port);
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() { ::close(fd); }
};

}  // namespace

TEST_CASE(
    "a run leaves event files, a table and a file for Prometheus, also when it goes on, and "
    "report --csv makes the same table") {
  const Runs folder;
  const std::string asked =
      " --set report.csv=true --set report.tensorboard=true --set "
      "report.prometheus_file=" +
      folder.quoted("x.prom");
  REQUIRE(run(folder.train("a", "2" + asked)).status == 0);
  REQUIRE(run(folder.train("a", "4" + asked)).status == 0);
  CHECK(files_in(folder.path / "a/tensorboard") == 2);
  const std::string table = folder.contents("a/metrics.csv");
  CHECK(std::count(table.begin(), table.end(), '\n') == 5);
  CHECK(run("report " + folder.quoted("a") + " --csv").out == table);
  CHECK(has(folder.contents("x.prom"),
            "meshwright_completed_steps{run=\"a\","
            "strategy=\"ddp\"} 4\n"));
  CHECK(has(folder.contents("x.prom"), "meshwright_run_finished{run=\"a\",strategy=\"ddp\"} 1\n"));
  // A new run of the name keeps them under the number of its metrics.
  REQUIRE(run(folder.train("a", "1 --set checkpoint.resume=none" + asked)).status == 0);
  CHECK(folder.contents("a/metrics.1.csv") == table);
  CHECK(files_in(folder.path / "a/tensorboard.1") == 2);
  CHECK(files_in(folder.path / "a/tensorboard") == 1);
  const Ran made =
      run("report " + folder.quoted("a") + " --csv --output " + folder.quoted("t.csv"));
  CHECK(has(made.out, "wrote "));
  CHECK(folder.contents("t.csv") == folder.contents("a/metrics.csv"));
  CHECK(
      has(run("report " + folder.quoted("a") + " " + folder.path.string() + "/a/../a --csv", "2>&1")
              .out,
          "it is shown once"));
  for (const char* wrong : {" --csv --json", " --csv --text"})
    CHECK(run("report " + folder.quoted("a") + wrong).status == 2);
}

TEST_CASE("an address that is none is refused by validate and before training, with its line") {
  for (const std::string verb : {"validate", "train"})
    check_said(
        verb + " configs/ddp_cpu.toml --set report.prometheus=localhost:94000",
        {{"", 2,
          "error[E0204]: report.prometheus = \"localhost:94000\" is no address to listen at: "
          "ports go up to 65535",
          "report.prometheus = \"127.0.0.1:9400\""}});
}

TEST_CASE("a port that is taken and a place that cannot be are warned of, and training goes on") {
  const Runs folder;
  const Taken taken;
  const Ran ran = run(folder.train("a", "2 --set report.prometheus=" + std::to_string(taken.port) +
                                            " --set report.prometheus_file=/dev/null/x"),
                      "2>&1");
  CAPTURE(ran.out);
  CHECK(ran.status == 0);
  const std::string at = "127.0.0.1:" + std::to_string(taken.port);
  for (const std::string& text : {ran.out, folder.contents("a/run.log")}) {
    CHECK((has(text,
               "warning: report.prometheus: cannot listen at " + at + ": Address already in use") ||
           has(text, "libprometheus-cpp-pull1.0")));
    CHECK(has(text, "warning: report.prometheus_file: cannot make /dev/null"));
    CHECK(has(text, "done: 2 steps"));
  }
}

}  // namespace monitors_cli_test
