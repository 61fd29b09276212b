// The address that answers Prometheus.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <set>

#include "apps/observe/monitors/monitors.h"
#include "apps/observe/monitors/tests/folder.h"
#include "sdk/base/beside.h"

namespace endpoint_test {

using namespace meshwright;
using namespace meshwright::monitor;
using monitor_tests::Folder;
using monitor_tests::has;
using monitor_tests::step_row;

namespace {

struct Socket {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  Socket() = default;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { ::close(fd); }
};

sockaddr_in loopback(int port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(static_cast<uint16_t>(port));
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return out;
}

std::string scrape(int port) {
  Socket socket;
  const sockaddr_in at = loopback(port);
  REQUIRE(::connect(socket.fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  const std::string ask = "GET /metrics HTTP/1.0\r\n\r\n";
  REQUIRE(::send(socket.fd, ask.data(), ask.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(ask.size()));
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(socket.fd, buffer, sizeof buffer, 0)) > 0;)
    out.append(buffer, static_cast<size_t>(n));
  return out;
}

// Local addresses in hexadecimal at which this machine listens on the port.
std::set<std::string> listens(int port) {
  std::set<std::string> out;
  char wanted[8];
  std::snprintf(wanted, sizeof wanted, ":%04X", static_cast<unsigned>(port));
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    for (std::string number, local, remote, state, rest;
         in >> number >> local >> remote >> state && std::getline(in, rest);)
      if (local.ends_with(wanted) && state == "0A") out.insert(local.substr(0, local.find(':')));
  }
  return out;
}

struct Run {
  Folder folder;
  std::vector<std::string> said;
  std::optional<Monitors> monitors;
  explicit Run(const std::string& host, int port = 0) {
    Settings settings;
    settings.folder = folder.path;
    settings.host = host;
    settings.port = port;
    settings.facts = {.run = "first", .strategy = "ddp", .version = "0.1.0"};
    monitors.emplace(settings, [this](const std::string& line) { said.push_back(line); });
  }
  // 0: it does not listen.
  int port() const {
    const std::string begin = "metrics for Prometheus at http://";
    if (said.empty() || !said[0].starts_with(begin)) return 0;
    return std::stoi(said[0].substr(said[0].rfind(':') + 1));
  }
};

// Built without prometheus-cpp, it says so.
bool built() { return std::filesystem::exists(beside_sdk("libmeshwright_prometheus.so")); }

}  // namespace

TEST_CASE("whoever asks is told the newest row, in Prometheus' text format" *
          doctest::skip(!built())) {
  Run run("127.0.0.1");
  CAPTURE(run.said[0]);
  REQUIRE(run.port() > 0);
  CHECK(run.said[0].ends_with("/metrics"));
  run.monitors->row(step_row(0));
  std::string answer = scrape(run.port());
  CHECK(answer.starts_with("HTTP/1.1 200 OK"));
  CHECK(has(answer, "# TYPE meshwright_tokens_total counter\n"));
  CHECK(has(answer, "# HELP meshwright_training_loss Mean loss"));
  CHECK(has(answer, "meshwright_training_loss{run=\"first\",strategy=\"ddp\"} 3\n"));
  run.monitors->row(step_row(1));
  CHECK(has(scrape(run.port()), "meshwright_training_loss{run=\"first\",strategy=\"ddp\"} 2.75\n"));
  run.monitors->end(true);
  CHECK(has(scrape(run.port()), "meshwright_run_finished{run=\"first\",strategy=\"ddp\"} 1\n"));
  // This machine's own address alone.
  CHECK(listens(run.port()) == std::set<std::string>{"0100007F"});
}

TEST_CASE("all interfaces are listened on only where that is written" * doctest::skip(!built())) {
  const Run all("0.0.0.0"), named("localhost");
  CHECK(listens(all.port()) == std::set<std::string>{"00000000"});
  CHECK(listens(named.port()) == std::set<std::string>{"0100007F"});
  const Run hidden("0");
  REQUIRE(hidden.said.size() == 1);
  CHECK(has(hidden.said[0], "all interfaces are written 0.0.0.0 or [::]"));
}

TEST_CASE("somebody who asks and never reads the answer holds up no step" *
          doctest::skip(!built())) {
  Run run("127.0.0.1");
  std::vector<std::unique_ptr<Socket>> slow;
  const sockaddr_in at = loopback(run.port());
  for (int n = 0; n < 8; ++n) {
    slow.push_back(std::make_unique<Socket>());
    REQUIRE(::connect(slow.back()->fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    ::send(slow.back()->fd, "GET /metr", 9, MSG_NOSIGNAL);
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < 1000; ++step) run.monitors->row(step_row(step));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  slow.clear();
}

TEST_CASE("a port that is taken, an address of another machine, an unknown name: said once" *
          doctest::skip(!built())) {
  const Run first("127.0.0.1");
  Run second("127.0.0.1", first.port());
  REQUIRE(second.said.size() == 1);
  CHECK(second.said[0] ==
        "warning: report.prometheus: cannot listen at 127.0.0.1:" + std::to_string(first.port()) +
            ": Address already in use; another port may be free, and port 0 takes one that is; "
            "the run goes on without it");
  for (int64_t step = 0; step < 5; ++step) second.monitors->row(step_row(step));
  second.monitors->end(true);
  CHECK(second.said.size() == 1);
  const Run other("192.0.2.1"), unknown("no-such-host.invalid");
  REQUIRE(other.said.size() == 1);
  CHECK(has(other.said[0], "Cannot assign requested address; the address is not this machine's"));
  REQUIRE(unknown.said.size() == 1);
  CHECK(has(unknown.said[0], "the host no-such-host.invalid is not known: "));
}

TEST_CASE("an IPv6 address is listened at, or it is said once what is in the way" *
          doctest::skip(!built())) {
  Run six("::1");
  for (int64_t step = 0; step < 5; ++step) six.monitors->row(step_row(step));
  six.monitors->end(true);
  REQUIRE(six.said.size() == 1);
  const bool told = has(six.said[0],
                        "cannot listen at [::1]:0: the civetweb of this system is built without "
                        "IPv6; 127.0.0.1:PORT and 0.0.0.0:PORT work") ||
                    has(six.said[0], "Cannot assign requested address") ||
                    has(six.said[0], "Address family not supported");
  CAPTURE(six.said[0]);
  CHECK((six.port() > 0) != told);
}

TEST_CASE("without the part that listens the warning says where it comes from" *
          doctest::skip(built())) {
  const Run run("127.0.0.1");
  REQUIRE(run.said.size() == 1);
  CHECK(has(run.said[0], "libprometheus-cpp-pull1.0"));
}

}  // namespace endpoint_test
